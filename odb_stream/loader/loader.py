"""Loader: the front of a pipeline. It checks the settings, hands out epochs, and saves and loads states."""

import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

import torch

from odb_stream.checkpoint.fit import identity_of, seal, unseal
from odb_stream.checkpoint.state import RankState, RunState
from odb_stream.config import (
    MEBIBYTE,
    Budget,
    Closure,
    FailureBudget,
    Layout,
    MixedModality,
    Oversize,
    Settings,
    World,
)
from odb_stream.errors import ConfigError
from odb_stream.loader.epoch import EpochIterator
from odb_stream.loader.history import StateHistory
from odb_stream.loader.rank_pipeline import RankPipeline
from odb_stream.loader.resume import begin_of
from odb_stream.loader.startup import current_world, leave, start
from odb_stream.loader.statistics import RunStatistics
from odb_stream.nodes.collate import Batch
from odb_stream.sources.pipeline import Pipeline
from odb_stream.sources.source import Reading, Segment

JOIN_SECONDS = 2.0
"""How long ``close`` waits for the background thread to finish its current work. It dies with the process anyway."""


class Loader:
    """A stream of batches: plain dicts of tensors, one ``for`` loop per epoch.

    With several data-parallel ranks, each rank builds a Loader with the same settings, in the same order relative to
    other collective calls. All ranks then make the same number of steps, whatever their data.

    Args:
        pipeline: where samples come from and what happens to them.
        budget: the hard bound on every batch of a rank.
        layout: ``"padded"`` rows, or one ``"packed"`` row with restarting positions.
        window: samples held for grouping on each rank. A larger window pads less and delays samples longer.
        lookahead: most groups planned in a round.
        workers: processes that run the stages; 0 runs them in a thread of this process.
        seed: for every random draw: shard order, sample order, augmentation, order of steps.
        closure: ``"join"`` ends an epoch when every sample of every rank was emitted once. ``"quota"`` repeats the data
            and ends an epoch at the first step by which all ranks together have emitted ``quota`` samples.
        quota: samples in an epoch, over all ranks, with ``closure="quota"``.
        rebalance: move groups between ranks when some run out of data before others. Without it those ranks idle.
        oversize: a sample that exceeds the budget alone is an ``"error"``, a ``"drop"`` (counted), or goes ``"solo"``.
        mixed_modality: ``"auto"`` gives a rank without images a minimal image without effect on steps where another
            rank has images, so that all ranks enter a sharded vision encoder. ``"dummy"`` does so on every step without
            images, as DDP without ``find_unused_parameters`` needs it. ``"off"`` never does.
        failure_budget: how much damaged data is tolerated, over all ranks, before the run stops.
        quarantine: a folder, local or in an object store, where each rank lists its damaged samples
            (``rank-00000.jsonl`` and so on).
        max_bytes: bound on the decoded images and finished batches that wait for the training loop.
        grad_accum: steps per optimizer update. ``loss_scale`` covers all of them, ``accum_last`` marks the last.
        world: the place of this rank among the data-parallel ranks; None takes it from torch.distributed.
        pad_token_id: the token id of padding, which carries no label.
        pad_to_multiple_of: widths are rounded up to a multiple of it.
        pin_memory: page-locked tensors, for copying to an accelerator.
        timeout: seconds without a sign of life after which another rank counts as dead.

    Raises:
        ConfigError: a setting or the pipeline is invalid, or ranks disagree. The message names the field and its value.
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
        closure: Closure = "join",
        quota: int | None = None,
        rebalance: bool = True,
        oversize: Oversize = "error",
        mixed_modality: MixedModality = "auto",
        failure_budget: FailureBudget | None = None,
        quarantine: str | None = None,
        max_bytes: int = 512 * MEBIBYTE,
        grad_accum: int = 1,
        world: World | None = None,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
        pin_memory: bool = False,
        timeout: float = 600.0,
    ) -> None:
        # The signature is spelled out for IDEs, help() and type checkers; from here on settings are one value.
        arguments = {**locals(), "failure_budget": failure_budget or FailureBudget()}
        settings = Settings(**{setting.name: arguments[setting.name] for setting in fields(Settings)})
        if not isinstance(pipeline, Pipeline):
            raise ConfigError(f"the first argument of Loader must be a Pipeline, not {pipeline!r}")
        if pin_memory and not torch.accelerator.is_available():
            raise ConfigError("pin_memory is True, but torch sees no accelerator here: leave it False")
        self._world_was_given = world is not None
        self._first_reading: Reading | None
        self._context, self._first_reading = start(pipeline, settings, world or current_world(), quarantine)
        self._finalizer = weakref.finalize(self, leave, self._context.transport)
        self._identity = identity_of(settings, self.world, self._context.source.fingerprint)
        self._statistics = RunStatistics()
        # One state for each step that `state_dict(step)` promises, and the one that the epoch begins with.
        self._history = StateHistory(max(lookahead, 2 * grad_accum) + 1, self._start_of(0))
        # Weak, so that an iterator that the training loop forgets is collected, which closes its pipeline.
        self._epoch: weakref.ref[EpochIterator] | None = None
        self._endless: RankPipeline | None = None
        """The pipeline that serves all epochs of a run with a quota."""
        self._last_thread: threading.Thread | None = None
        self._loaded: RunState | None = None
        self._next_epoch = 0
        self._closed = False

    @property
    def settings(self) -> Settings:
        """The settings that this loader was built with."""
        return self._context.settings

    @property
    def world(self) -> World:
        """The place of this rank among the data-parallel ranks."""
        return self._context.world

    @property
    def samples(self) -> int | None:
        """Samples that all ranks together read in an epoch, drops included; None if unknown before reading."""
        return self._context.samples

    @property
    def plan(self) -> tuple[Segment, ...]:
        """Which parts of which shards this rank reads in the first epoch. Empty for a map-style dataset."""
        return self._context.plan

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch. An epoch that is still running ends; its remaining samples count as abandoned."""
        if self._closed:
            raise ConfigError("this Loader is closed: build a new one")
        if not self._world_was_given and self.world.size < current_world().size:
            raise ConfigError(
                "torch.distributed was started after this Loader was built, so every rank would read the same data: "
                "call init_process_group first, then build the Loader"
            )
        self._end_epoch()
        begin, self._loaded = self._loaded or self._start_of(self._next_epoch), None
        pipeline = self._endless or self._open_pipeline(begin)
        if self.settings.closure == "quota":
            self._endless = pipeline
        self._history.begin(begin)
        self._next_epoch = begin.epoch + 1
        epoch = EpochIterator(
            pipeline, begin, world=self.world, statistics=self._statistics, history=self._history, owner=self
        )
        self._epoch = weakref.ref(epoch)
        return epoch

    def _start_of(self, epoch: int) -> RunState:
        mine, everyone = self._statistics.mine, self._statistics.everyone
        return RunState(epoch=epoch, pass_number=epoch, mine=mine, everyone=everyone)

    def _open_pipeline(self, begin: RunState) -> RankPipeline:
        first, self._first_reading = self._first_reading, None
        pipeline = RankPipeline(self._context, self._statistics, begin, first_reading=first, after=self._last_thread)
        self._last_thread = pipeline.thread
        return pipeline

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The exact position of this rank: a few values under fixed keys, ready for JSON, with references to samples.

        The state after the last step that was yielded, or after ``step``, which may be one of the last
        ``max(lookahead, 2 * grad_accum)`` steps of this epoch, for trainers that fetch ahead. Between epochs it is the
        start of the next epoch. If all ranks save at the same step and load on a new Loader with the same settings and
        data, they get the batches that would have followed.

        Raises StateError for a step that was not yielded, or too long ago.
        """
        state = self._history.newest if step is None else self._history.get(step)
        return seal(RankState(identity=self._identity, rank=self.world.rank, state=state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next ``for`` loop yields the batches that would have followed it.

        Every rank loads the state that it saved at the same step. If the number of ranks has changed, all ranks load
        the result of :func:`odb_stream.checkpoint.merge`; only then this reads indexes. A running epoch ends.

        Raises StateError for a state of other settings, data or ranks, or of another rank, and names the difference.
        Ranks that loaded states of different steps all get a StateError at their first step.
        """
        if self._closed:
            raise ConfigError("this Loader is closed: build a new one")
        loaded = begin_of(unseal(state), self._identity, self.world, self._context.source, self.settings.seed)
        self._end_epoch()
        self._end_pipeline()
        self._loaded = loaded
        self._next_epoch = loaded.epoch
        self._statistics.restore(loaded.mine, loaded.everyone)
        self._history.begin(loaded)

    def _running(self) -> EpochIterator | None:
        return self._epoch() if self._epoch is not None else None

    def _end_epoch(self) -> None:
        epoch = self._running()
        if epoch is not None:
            epoch.close()
        if self._endless is not None and self._endless.settled:
            self._endless = None
        self._epoch = None

    def _end_pipeline(self) -> None:
        """End the pipeline of a run with a quota, which lives on between epochs."""
        if self._endless is not None:
            self._endless.close()
            self._endless = None

    def report(self) -> dict[str, Any]:
        """What was emitted, dropped and abandoned so far, and how long was waited, as a plain dict.

        ``global`` holds the same figures over all ranks: exact for emitted samples, as of the last planned round for
        drops. Abandoned samples are those of this rank only.
        """
        epoch = self._running()
        pipeline = epoch.pipeline if epoch is not None else self._endless
        return self._statistics.report(
            running=None if pipeline is None or pipeline.settled else pipeline.dropped(),
            sources=self._context.source.names,
            ranks=self.world.size,
            budget=self.settings.budget.tokens,
        )

    def close(self) -> None:
        """End the epoch, the workers and the connection to other ranks at once, without waiting for another rank."""
        if self._closed:
            return
        self._closed = True
        self._end_epoch()
        self._end_pipeline()
        self._context.transport.leave()
        self._context.pool.close()
        if self._last_thread is not None:
            self._last_thread.join(JOIN_SECONDS)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
