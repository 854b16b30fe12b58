"""Accumulate: the steps of one optimizer update share one denominator, so it must be known before the first is used."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from odb_stream.batching.totals import loss_scale
from odb_stream.checkpoint.state import AccumulationState
from odb_stream.nodes.collate import Finished


class Accumulate(Iterator[Finished]):
    """A plain iterator that takes ``steps`` finished batches from ``source`` before it yields the first of them.

    Each step then carries its place in the accumulation window and a loss scale over the whole window, also in the
    last, shorter window: the sum of the scaled losses of a window is the token mean over it. Runs in the thread of the
    training loop, on the consumer's side of the channel. ``rest`` is what a resume left of a window; it is completed
    first. If the source fails inside a window, the steps before the failure come first, as a shorter window.
    """

    def __init__(
        self, source: Iterator[Finished], *, steps: int, ranks: int, rest: AccumulationState | None = None
    ) -> None:
        self._source = source
        self._steps = steps
        self._ranks = ranks
        self._rest = rest
        self._window: deque[Finished] = deque()

    def __next__(self) -> Finished:
        if not self._window:
            self._fill()
        return self._window.popleft()

    def _fill(self) -> None:
        # After a resume the steps of a begun window that were trained on are gone: their total comes from the state.
        first, steps, total = (0, self._steps, None) if self._rest is None else self._rest
        self._rest = None
        taken: list[Finished] = []
        # A quota ends the epoch in any step, and no window reaches into the next epoch.
        while len(taken) < steps and not (taken and taken[-1].step.ends_epoch):
            try:
                taken.append(next(self._source))
            except Exception:
                if not taken:
                    raise
                break  # the source raises it again at the next call, once these steps were yielded
        if total is None:
            total = sum(finished.step.totals.supervised for finished in taken)
        last = first + len(taken) - 1
        for place, finished in enumerate(taken, start=first):
            info = replace(
                finished.step.info,
                loss_scale=loss_scale(finished.step.info.supervised_tokens, total, self._ranks),
                accum_index=place,
                accum_last=place == last,
            )
            rest = None if place == last else AccumulationState(place + 1, last - place, total)
            self._window.append(Finished(finished.batch, finished.step._replace(info=info, accumulation=rest)))
