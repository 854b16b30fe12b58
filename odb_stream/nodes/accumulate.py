"""Accumulate: the steps of one optimizer update share one denominator, so it must be known before the first is used."""

from collections import deque
from dataclasses import replace
from typing import Any

from torchdata.nodes import BaseNode

from odb_stream.batching.ledger import loss_scale
from odb_stream.nodes.align import Accumulation
from odb_stream.nodes.collate import Finished


class Accumulate(BaseNode[Finished]):
    """Takes ``steps`` finished batches from its source before it yields the first of them.

    Each then carries its place in the accumulation window and a loss scale over the whole window, the last, shorter
    one included: the sum of the scaled losses of a window is the token mean over it. Runs in the training loop's
    thread, on the consumer's side of the queue. An error inside a window comes after the steps before it, as a
    shorter window. ``rest`` is what a resume left of a window: it is completed first.
    """

    def __init__(self, source: BaseNode[Finished], *, steps: int, ranks: int, rest: Accumulation | None = None) -> None:
        super().__init__()
        self._rest = rest
        self._source = source
        self._steps = steps
        self._ranks = ranks
        self._window: deque[Finished] = deque()
        self._error: Exception | None = None

    def next(self) -> Finished:
        if not self._window:
            self._fill()
        return self._window.popleft()

    def get_state(self) -> dict[str, Any]:
        return self._source.state_dict()

    def _fill(self) -> None:
        if self._error is not None:
            raise self._error
        taken: list[Finished] = []
        first, steps, before = (0, self._steps, None) if self._rest is None else self._rest
        self._rest = None
        while len(taken) < steps and not (taken and taken[-1].step.ends_epoch):
            try:
                taken.append(next(self._source))
            except Exception as error:
                if not taken:
                    raise
                self._error = error
                break
        total = sum(finished.step.totals.supervised for finished in taken) if before is None else before
        last = first + len(taken) - 1
        for place, finished in enumerate(taken, start=first):
            info = replace(
                finished.step.info,
                loss_scale=loss_scale(finished.step.info.supervised_tokens, total, self._ranks),
                accum_index=place,
                accum_last=place == last,
            )
            rest = None if place == last else Accumulation(place + 1, last - place, total)
            self._window.append(Finished(finished.batch, finished.step._replace(info=info, accumulation=rest)))
