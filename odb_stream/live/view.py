"""LiveView: looks at a running loader now and then, and shows what it does while it runs."""

import math
import sys
import time
import weakref
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from odb_stream.errors import ConfigError
from odb_stream.live.figures import Looks
from odb_stream.live.scalars import ScalarWriter, checked_writer, open_writer, write_scalars
from odb_stream.live.table import Screen

if TYPE_CHECKING:
    from odb_stream.config import World
    from odb_stream.loader import Loader

MOST_SHARE = 0.005
"""Of the time that looks may take: one that took long (a slow terminal, a slow callback) puts off the next."""

SECONDS_BETWEEN_SCALARS = 5.0
"""TensorBoard gets scalars no more often than this, so that the files of a long run stay small."""


class LiveView:
    """Shows what a loader does while a loop trains on it: a table, TensorBoard scalars, figures for a callback.

    ::

        with LiveView(loader) as live:
            for batch in loader:
                ...
                live.update(loss)

    Looking costs at most ``MOST_SHARE`` of the time. Nothing is exchanged between ranks: what is known of all ranks is
    known on each. The first process (of rank 0) draws the table and writes the folder of ``tensorboard``.

    Args:
        loader: what is looked at, through its ``report()``.
        title: stands above the table.
        every: seconds between two looks, at least; 0 looks at every step, as far as ``MOST_SHARE`` lets it.
        table: draw on standard error. None: on the first process, if that is a terminal. True: on this process,
            whatever its rank; where standard error is no terminal, only the last table appears, at the end.
        callback: called with ``figures()`` at every look, on every rank. What it raises ends the run.
        tensorboard: a folder, for which a writer is opened and closed here, or a SummaryWriter that stays yours to
            close. Scalars are named ``odb_stream/...``; see :func:`odb_stream.live.scalars.write_scalars`.
        clock: gives seconds.

    Raises:
        ConfigError: ``every`` is no time, or ``tensorboard`` cannot be written to.
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
            raise ConfigError(f"every is {every!r}, but must be seconds, 0 or more")
        self._loader = loader
        self._title = title
        self._every = every
        self._clock = clock
        self._callback = callback
        self._loss: Any = None
        first = is_first_process(loader.world)
        self._writer, owned = None, None
        if isinstance(tensorboard, str | PathLike):
            self._writer = owned = open_writer(tensorboard) if first else None
        elif tensorboard is not None:
            self._writer = checked_writer(tensorboard)
        self._screen = Screen() if table or (table is None and first and sys.stderr.isatty()) else None
        self._finalizer = weakref.finalize(self, _put_back, self._screen, owned)
        self.restart()

    def restart(self) -> None:
        """Let rates and ratios begin here; needed only where the loader took another state meanwhile."""
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
        """Call it once a step: looks at the clock, and now and then shows the figures.

        ``loss`` is a number or a tensor with one element, read only when it is shown. Raises what the callback raises.
        """
        if loss is not None:
            self._loss = loss.detach() if hasattr(loss, "detach") else loss
        if self._clock() >= self._due:
            self._look()

    def figures(self) -> dict[str, Any]:
        """What the loader does, as plain data fit for JSON; each call is a look too.

        - ``seconds`` since the start; ``rank`` and ``ranks``; ``loss``, the last that was given, else None.
        - Of this rank, and under ``global`` of all ranks: ``samples``, ``tokens``, ``padded_tokens`` and ``dropped`` by
          reason, as the loader's report counts them (over the whole run, if it was resumed); ``steps`` likewise.
        - ``recent`` and ``overall``, of this rank and under ``global``: ``seconds`` and ``steps`` of the span,
          ``samples_per_second``, ``tokens_per_second`` (real tokens), ``padded_tokens_per_second``; ``padding``, the
          share of padded tokens that are not real; ``utilisation``, real tokens of what the budget would hold. Recent
          is since the newest look that is at least 5 s old; overall is since the start of this view.
        - ``wait_seconds`` and ``wait_share`` (of the span's seconds) by stage, in the spans of this rank:
          ``trainer`` waited for a batch; the loader's own thread waited for ``workers``, to ``read``, for ``peers``
          (other ranks), and for ``room`` (its batches for the trainer).
        - ``imbalance``, in the spans under ``global``: the largest rank's padded tokens in a step over the mean of all
          ranks; 1 is even.
        - ``trainer_waits_for``: ``"workers"``, ``"read"``, ``"peers"``, ``"packing"``, or None if it hardly waits;
          ``verdict``: the same in a line.
        """
        return self._looks.figures(self._loader.report(), self._clock(), _number(self._loss))

    def close(self) -> None:
        """Show the figures a last time, put the terminal back, close the writer if it was opened here."""
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
        loss = _number(self._loss)  # may wait for an accelerator, which is no cost of looking
        began = self._clock()
        figures = self._looks.figures(self._loader.report(), began, loss)
        if self._screen is not None:
            self._screen.draw(figures, self._title)
        if self._writer is not None and began >= self._scalars_due:
            write_scalars(self._writer, figures)
            self._scalars_due = began + SECONDS_BETWEEN_SCALARS
        callback, self._callback = self._callback, None  # one that raises is not called again
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
    """Whether this is rank 0, and where several processes share a rank, the first of them."""
    if world.rank or world.places is None:
        return world.rank == 0
    import torch.distributed as dist

    return dist.get_rank() == world.places.index(0)


def _number(loss: Any) -> float | None:
    return None if loss is None else float(loss)


def _put_back(screen: Screen | None, writer: ScalarWriter | None) -> None:
    """The end of a view, also of one that was forgotten."""
    if screen is not None:
        screen.close()
    if writer is not None:
        writer.close()
