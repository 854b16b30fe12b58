"""Loader: builds the node graph of a pipeline, runs it one epoch at a time and keeps the account."""

import copy
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import torch

from odb_stream.config import MEBIBYTE, Budget, Layout, Oversize, Settings, World
from odb_stream.errors import ConfigError, StageError, StateError
from odb_stream.metrics import Totals
from odb_stream.nodes.align import Align
from odb_stream.nodes.collate import STEP_KEY, Batch, Collate
from odb_stream.nodes.pack import Pack
from odb_stream.nodes.prefetch import Prefetch
from odb_stream.nodes.prepare import PrepareRecords
from odb_stream.nodes.read import Read
from odb_stream.pipeline import Pipeline
from odb_stream.runtime.waits import Waits
from odb_stream.runtime.workers import WorkerPool
from odb_stream.shardio.source import Segment

JOIN_SECONDS = 5.0
"""How long ``close`` lets the background thread finish what it is in the middle of."""


class Loader:
    """A stream of batches: plain dicts of tensors, one ``for`` loop an epoch.

    Args:
        pipeline: where samples come from and what happens to them.
        budget: the hard bound on every batch.
        layout: ``"padded"`` rows, or one ``"packed"`` row with positions that restart.
        window: samples held for grouping. Larger windows pad less and delay a sample longer.
        lookahead: groups planned in a round, at most.
        workers: processes that run the stages; 0 runs them in a thread of this process.
        seed: of every draw: shard order, sample order, augmentation, order of steps.
        oversize: a sample that exceeds the budget alone is an ``"error"``, ``"drop"`` (counted), or goes ``"solo"``.
        max_bytes: bound on the finished batches that wait for the training loop.
        pad_token_id: fills padded places; they carry no label.
        pad_to_multiple_of: widths are rounded up to it.
        pin_memory: page-locked tensors, for copying to an accelerator.

    Raises:
        ConfigError: a setting or the pipeline cannot work; the message names the field and the value.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        budget: Budget,
        layout: Layout = "padded",
        window: int = 1024,
        lookahead: int = 128,
        workers: int = 0,
        seed: int = 0,
        oversize: Oversize = "error",
        max_bytes: int = 512 * MEBIBYTE,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
        pin_memory: bool = False,
    ) -> None:
        self._settings = Settings(
            budget=budget,
            layout=layout,
            window=window,
            lookahead=lookahead,
            workers=workers,
            seed=seed,
            oversize=oversize,
            max_bytes=max_bytes,
            pad_token_id=pad_token_id,
            pad_to_multiple_of=pad_to_multiple_of,
            pin_memory=pin_memory,
        )
        if not isinstance(pipeline, Pipeline):
            raise ConfigError(f"the first argument of Loader must be a Pipeline, not {pipeline!r}")
        if pin_memory and not torch.accelerator.is_available():
            raise ConfigError("pin_memory is True, but torch sees no accelerator here: leave it False")
        self._source = pipeline.source
        self._world = World()
        self._reading = self._source.reading(self._world, seed=seed, epoch=0)
        self._pool = WorkerPool(pipeline.prepare(seed), workers)
        self._waits = Waits()
        self._totals = Totals()
        self._logged_reasons: set[str] = set()
        self._next_epoch = 0
        self._current: weakref.ref[Epoch] | None = None
        self._closed = False

    @property
    def samples(self) -> int | None:
        """Samples that an epoch of this rank reads, drops included; None when only reading can tell."""
        return self._reading.samples

    @property
    def plan(self) -> tuple[Segment, ...]:
        """Which stretches of which shards this rank reads in the first epoch (empty for a dataset)."""
        return self._reading.plan

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch; an epoch that is still running ends, and its rest is counted as abandoned."""
        if self._closed:
            raise ConfigError("this Loader is closed: build a new one")
        self._end_epoch()
        epoch = Epoch(self, self._next_epoch)
        self._next_epoch += 1
        self._current = weakref.ref(epoch)
        return epoch

    def _end_epoch(self) -> None:
        epoch = self._current() if self._current is not None else None
        if epoch is not None:
            epoch.close()
        self._current = None

    def report(self) -> dict[str, Any]:
        """What was emitted, dropped, abandoned and waited for so far, as a plain dict; ``global`` is over all ranks."""
        totals = copy.deepcopy(self._totals)
        epoch = self._current() if self._current is not None else None
        if epoch is not None:
            epoch.settle_into(totals)
        figures = totals.figures(ranks=1, budget=self._settings.budget.tokens)
        overall = totals.figures(ranks=self._world.size, budget=self._settings.budget.tokens)
        return {**figures, "wait_seconds": dict(self._waits.seconds), "global": overall}

    def close(self) -> None:
        """End the epoch and the workers at once. May be called again."""
        self._closed = True
        epoch = self._current() if self._current is not None else None
        self._end_epoch()
        self._pool.close()
        if epoch is not None:
            epoch.join(JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Epoch(Iterator[Batch]):
    """One pass over the data; what ``iter(loader)`` gives."""

    def __init__(self, loader: Loader, number: int) -> None:
        settings, waits = loader._settings, loader._waits
        self._number = number
        self._totals = loader._totals
        self._emitted = 0
        self._settled = False
        self._ended = False
        self._superseded = False
        self._reading = (
            loader._reading
            if number == 0
            else loader._source.reading(loader._world, seed=settings.seed, epoch=number)
        )
        read = Read(self._reading, waits)
        prepare = PrepareRecords(read, loader._pool, workers=settings.workers, epoch=number, waits=waits)
        self._pack = Pack(prepare, settings, loader._logged_reasons)
        align = Align(self._pack, seed=settings.seed, epoch=number)
        self._prefetch = Prefetch(
            Collate(align, settings), max_bytes=settings.max_bytes, waits=waits, at_end=prepare.cancel
        )

    def __next__(self) -> Batch:
        if self._superseded:
            raise StateError(
                f"this iterator of epoch {self._number} was ended by close() or by a new iterator of the same Loader"
            )
        if self._ended:
            raise StopIteration
        try:
            batch: Batch = next(self._prefetch)
        except StopIteration:
            self._finish()
            raise
        info = batch[STEP_KEY]
        self._emitted += info.samples
        self._totals.count(info)
        return batch

    def _finish(self) -> None:
        self._ended = True
        self._settle()
        dropped = self._pack.dropped
        if not self._emitted and dropped.total():
            raise StageError(
                f"epoch {self._number}: all {dropped.total()} samples were dropped ({dict(dropped)}), nothing is left "
                "to train on; the log names the first sample of each reason"
            )

    def close(self) -> None:
        """End this epoch now; samples that were not emitted count as abandoned."""
        if not self._ended and not self._superseded:
            self._superseded = True
            self._prefetch.close()
            self._settle()

    def join(self, seconds: float) -> None:
        """Wait for the background thread to end."""
        self._prefetch.join(seconds)

    def settle_into(self, totals: Totals) -> None:
        """Add to ``totals`` what this epoch has settled so far, if it still runs."""
        if not self._settled:
            self._add_to(totals, abandoned=0)

    def _settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        expected = self._reading.samples if self._reading.samples is not None else self._pack.received
        abandoned = 0 if self._ended else expected - self._emitted - self._pack.dropped.total()
        self._add_to(self._totals, abandoned=abandoned)

    def _add_to(self, totals: Totals, *, abandoned: int) -> None:
        totals.settle(
            dropped=self._pack.dropped.copy(),
            abandoned=abandoned,
            solo=self._pack.solo,
            max_delay=self._pack.planner.window.max_delay,
        )

    def __del__(self) -> None:
        self.close()
