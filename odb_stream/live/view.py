"""LiveView: looks at a running loader from time to time and shows what it does."""

import math
import sys
import time
import weakref
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from odb_stream.errors import ConfigError
from odb_stream.live.scalars import ScalarWriter, open_writer, write_scalars
from odb_stream.live.table import Screen

if TYPE_CHECKING:
    from odb_stream.config import World
    from odb_stream.loader import Loader

MOST_SHARE = 0.005
"""Largest share of the time that looks may take. A long look (slow terminal or callback) delays the next."""

SECONDS_BETWEEN_SCALARS = 5.0
"""TensorBoard gets scalars no more often than this, to keep the files of a long run small."""


class LiveView:
    """Shows what a loader does while a loop trains on it: a table, TensorBoard scalars, figures for a callback.

    ::

        with LiveView(loader) as live:
            for batch in loader:
                ...
                live.update(loss)

    Looking costs at most ``MOST_SHARE`` of the time. Ranks exchange nothing for it: each rank already knows the figures
    of all ranks. The first process of rank 0 draws the table and writes the ``tensorboard`` folder.

    Args:
        loader: the loader to look at, through its ``report()``.
        title: title of the table.
        every: least seconds between two looks; 0 looks at every step, as far as ``MOST_SHARE`` allows.
        table: whether to draw on standard error. None: on the first process, if standard error is a terminal. True: on
            this process, whatever its rank; if standard error is not a terminal, only the last table is printed.
        callback: called with ``figures()`` at every look, on every rank. An exception in it ends the run.
        tensorboard: a folder, for which the view opens and closes a writer, or a SummaryWriter, which you close
            yourself. Scalars are named ``odb_stream/...``; see :func:`odb_stream.live.scalars.write_scalars`.
        clock: returns the time in seconds.

    Raises:
        ConfigError: ``every`` is not a time, or ``tensorboard`` is not writable.
    """

    def __init__(
        self,
        loader: "Loader",
        *,
        title: str = "",
        every: float = 0.5,
        table: bool | None = None,
        callback: Callable[[dict[str, Any]], object] | None = None,
        tensorboard: str | PathLike[str] | ScalarWriter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 0 <= every < math.inf:
            raise ConfigError(f"every is {every!r}, but must be a number of seconds, at least 0")
        self._loader = loader
        self._title = title
        self._every = every
        self._clock = clock
        self._callback = callback
        self._loss: Any = None
        first = is_first_process(loader.world)
        owned = None
        if isinstance(tensorboard, str | PathLike):
            owned = tensorboard = open_writer(tensorboard) if first else None
        elif tensorboard is not None and not callable(getattr(tensorboard, "add_scalar", None)):
            raise ConfigError(f"tensorboard must be a folder or a SummaryWriter, not {tensorboard!r}")
        self._writer = tensorboard
        self._screen = Screen() if table or (table is None and first and sys.stderr.isatty()) else None
        # Also runs at the exit of a program that forgot to close the view: a hidden cursor would stay hidden.
        self._finalizer = weakref.finalize(self, _put_back, self._screen, owned)
        self.restart()

    def restart(self) -> None:
        """Compute rates and ratios from now on; needed only after the loader loaded another state."""
        # Not at the top: importing the view, as every command does, would load numpy.
        from odb_stream.live.figures import Looks

        now, loader = self._clock(), self._loader
        self._looks = Looks(
            loader.report(),
            now,
            rank=loader.world.rank,
            ranks=loader.world.size,
            budget=loader.settings.budget.tokens,
        )
        self._due = self._scalars_due = now + self._every if self._is_shown else math.inf

    def update(self, loss: Any = None) -> None:
        """Call this once per step: it shows the figures if the next look is due.

        ``loss`` is a number or a tensor with one element, which is read only when it is shown. Raises the exceptions of
        the callback.
        """
        if loss is not None:
            # Detached, or the graph of the step would stay in memory until the next one.
            self._loss = loss.detach() if hasattr(loss, "detach") else loss
        if self._clock() >= self._due:
            self._look()

    def figures(self) -> dict[str, Any]:
        """What the loader is doing, as plain data ready for JSON; each call is also a look.

        - ``seconds`` since the start; ``rank`` and ``ranks``; ``loss``, the last one given, or None.
        - Of this rank, and of all ranks under ``global``: ``samples``, ``tokens``, ``padded_tokens`` and ``dropped`` by
          reason, as the loader's report counts them (over the whole run, if it was resumed). Of this rank also
          ``steps``.
        - ``recent`` and ``overall``, of this rank and under ``global``: ``seconds`` and ``steps`` of the span,
          ``samples_per_second``, ``tokens_per_second`` (real tokens), ``padded_tokens_per_second``; ``padding``, the
          share of padded tokens that are not real; ``utilisation``, real tokens as a share of the budget. Recent
          begins at the newest look that is at least 5 s old, overall at the start of this view.
        - ``wait_seconds`` and ``wait_share`` (of the span's seconds) by stage, in the spans of this rank:
          ``trainer`` waited for a batch; the loader's own thread waited for ``workers``, to ``read``, for ``peers``
          (other ranks), and for ``room`` (until the trainer takes a finished batch).
        - ``imbalance``, in the spans under ``global``: the padded tokens of the largest rank in a step over the mean of
          all ranks; 1 is even.
        - ``trainer_waits_for``: ``"workers"``, ``"read"``, ``"peers"``, ``"packing"``, or None if it hardly waits;
          ``verdict``: the same in a sentence.
        """
        return self._looks.figures(self._loader.report(), self._clock(), _number(self._loss))

    def close(self) -> None:
        """Show the figures a last time, restore the terminal, and close the writer if the view opened it."""
        try:
            if self._finalizer.alive and self._is_shown:
                self._scalars_due = -math.inf
                self._look()
        finally:
            self._end()

    @property
    def _is_shown(self) -> bool:
        return self._screen is not None or self._writer is not None or self._callback is not None

    def _look(self) -> None:
        loss = _number(self._loss)  # before the clock: waiting for an accelerator is not a cost of looking
        began = self._clock()
        figures = self._looks.figures(self._loader.report(), began, loss)
        if self._screen is not None:
            self._screen.draw(figures, self._title)
        if self._writer is not None and began >= self._scalars_due:
            write_scalars(self._writer, figures)
            self._scalars_due = began + SECONDS_BETWEEN_SCALARS
        callback, self._callback = self._callback, None  # if it raises, close() does not call it again
        if callback is not None:
            callback(figures)
            self._callback = callback
        ended = self._clock()
        self._due = ended + max(self._every, (ended - began) / MOST_SHARE)

    def _end(self) -> None:
        self._due = math.inf
        self._finalizer()

    def __enter__(self) -> Self:
        self.restart()
        if self._screen is not None:
            self._screen.draw(self.figures(), self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()


def is_first_process(world: "World") -> bool:
    """Whether this process has rank 0, and is the first one if several processes share the rank."""
    if world.rank or world.places is None:
        return world.rank == 0
    import torch.distributed as dist

    return dist.get_rank() == world.places.index(0)


def _number(loss: Any) -> float | None:
    return None if loss is None else float(loss)


def _put_back(screen: Screen | None, writer: ScalarWriter | None) -> None:
    """End a view, also one that was never closed. Not a method: a finalizer must not refer to its object."""
    if screen is not None:
        screen.close()
    if writer is not None:
        writer.close()
