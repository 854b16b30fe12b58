"""Loader: the front of a pipeline. Checks the settings on all ranks, hands out epochs and keeps the account."""

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

import torch

from odb_stream.batching.totals import by_source, report_figures
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
from odb_stream.errors import ConfigError, StateError
from odb_stream.loader.context import Shop
from odb_stream.loader.epoch import Epoch, Stream
from odb_stream.loader.resume import begin_of
from odb_stream.loader.startup import agree, connect, current_world, dummy_image, leave, plan_in_words, total_samples
from odb_stream.nodes.collate import Batch
from odb_stream.prepare.records import prepare_for
from odb_stream.shards.quarantine import Quarantine
from odb_stream.sources.pipeline import Pipeline
from odb_stream.sources.source import Segment
from odb_stream.workers.pool import WorkerPool

JOIN_SECONDS = 2.0
"""How long ``close`` lets the background thread finish what it is in the middle of."""

logger = logging.getLogger(__name__)


class Loader:
    """A stream of batches: plain dicts of tensors, one ``for`` loop an epoch.

    With several data-parallel ranks each builds a Loader with the same settings, in the same order relative to other
    collective calls; all ranks then make the same number of steps, whatever their data.

    Args:
        pipeline: where samples come from and what happens to them.
        budget: the hard bound on every batch of a rank.
        layout: ``"padded"`` rows, or one ``"packed"`` row with positions that restart.
        window: samples held for grouping on each rank. Larger windows pad less and delay a sample longer.
        lookahead: groups planned in a round, at most.
        workers: processes that run the stages; 0 runs them in a thread of this process.
        seed: of every draw: shard order, sample order, augmentation, order of steps.
        closure: ``"join"`` ends an epoch when every sample of every rank was emitted once. ``"quota"`` repeats the data
            and ends an epoch at the first step at which all ranks together emitted ``quota`` samples.
        quota: samples over all ranks in an epoch, with ``closure="quota"``.
        rebalance: move groups between ranks when some run out of data before others; without it these ranks idle.
        oversize: a sample that exceeds the budget alone is an ``"error"``, ``"drop"`` (counted), or goes ``"solo"``.
        mixed_modality: ``"auto"`` gives a rank without images, on a step where another has some, a minimal image of no
            effect, so that all enter a sharded vision encoder; ``"dummy"`` does so on every step without images, as
            DDP without ``find_unused_parameters`` needs it; ``"off"`` never does.
        failure_budget: how much damaged data is borne, over all ranks, before the run stops.
        quarantine: a folder, local or in an object store, where each rank lists the damaged samples it met
            (``rank-00000.jsonl`` and so on).
        max_bytes: bound on decoded images and finished batches that wait for the training loop.
        grad_accum: steps of one optimizer update. ``loss_scale`` is over them all, ``accum_last`` marks the last.
        world: this rank's place among the data-parallel ranks; None takes it from torch.distributed.
        pad_token_id: fills padded places; they carry no label.
        pad_to_multiple_of: widths are rounded up to it.
        pin_memory: page-locked tensors, for copying to an accelerator.
        timeout: seconds without a sign of life after which another rank is given up.

    Raises:
        ConfigError: a setting or the pipeline cannot work, or ranks disagree; the message names the field and value.
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
        self._settings = settings
        self._world = world or current_world()
        self._world_was_given = world is not None
        self._transport = connect(self._world, timeout)
        self._finalizer = weakref.finalize(self, leave, self._transport)
        self._epoch: weakref.ref[Epoch] | None = None
        self._endless: Stream | None = None
        self._begin: RunState | None = None
        self._next_epoch = 0
        self._closed = False
        try:
            agree(settings, self._transport)
            source = pipeline.source.open()
            first = source.reading(self._world, seed=seed, epoch=0)
            self._plan = first.plan
            logger.info("%s", plan_in_words(self._world, first.plan))
            self._samples = total_samples(first.samples, self._transport)
            dummy = dummy_image(pipeline, settings.mixed_modality, self._world.size)
            pool = WorkerPool(prepare_for(pipeline, seed), workers)
        except BaseException:
            self._finalizer()
            raise
        self._shop = Shop(source, settings, self._world, pool, self._transport, first, dummy)
        self._shop.states = deque(maxlen=max(lookahead, 2 * grad_accum) + 1)
        self._identity = identity_of(settings, self._world, source.fingerprint)
        if quarantine is not None:
            self._shop.quarantine = Quarantine(quarantine, self._world.rank)

    @property
    def settings(self) -> Settings:
        """The settings that this loader was built with."""
        return self._settings

    @property
    def world(self) -> World:
        """This rank's place among the data-parallel ranks."""
        return self._world

    @property
    def samples(self) -> int | None:
        """Samples that all ranks together read in an epoch, drops included; None when only reading can tell."""
        return self._samples

    @property
    def plan(self) -> tuple[Segment, ...]:
        """Which stretches of which shards this rank reads in the first epoch (empty for a dataset)."""
        return self._plan

    def __iter__(self) -> Iterator[Batch]:
        """Start the next epoch; an epoch that is still running ends, and its rest is counted as abandoned."""
        if self._closed:
            raise ConfigError("this Loader is closed: build a new one")
        if not self._world_was_given and self._world.size < current_world().size:
            raise ConfigError(
                "torch.distributed was started after this Loader was built, so every rank would read the same data: "
                "call init_process_group first, then build the Loader"
            )
        self._end_epoch()
        begin, self._begin = self._begin or self._start(self._next_epoch), None
        stream = self._endless or Stream(self._shop, begin)
        if self._settings.closure == "quota":
            self._endless = stream
        epoch = Epoch(self._shop, stream, begin, self)
        self._shop.states.clear()
        self._shop.states.append((None, begin))
        self._next_epoch = begin.epoch + 1
        self._epoch = weakref.ref(epoch)
        return epoch

    def _start(self, epoch: int) -> RunState:
        return RunState(epoch=epoch, pass_number=epoch, mine=self._shop.mine, everyone=self._shop.everyone)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where this rank stands, exactly: few values under fixed keys, fit for JSON; it refers to samples only.

        After the last step that was yielded, or after ``step``, one of the last ``max(lookahead, 2 * grad_accum)`` of
        this epoch, for trainers that pull ahead. Between epochs it is the start of the next one. Saved by all ranks at
        the same step and loaded on a new Loader with the same settings and data, what follows is what would have come.

        Raises StateError for a step that was not yielded, or too long ago.
        """
        if self._begin is not None or not self._shop.states:
            saved = self._begin or self._start(self._next_epoch)
            known: dict[int | None, RunState] = {None: saved}
        else:
            known = dict(self._shop.states)
            saved = self._shop.states[-1][1]
        if step is not None:
            if step not in known:
                numbers = [number for number in known if number is not None]
                kept = f"{min(numbers)} to {max(numbers)}" if numbers else "none yet"
                raise StateError(f"there is no state after step {step} of this epoch; kept are those of steps: {kept}")
            saved = known[step]
        return seal(RankState(identity=self._identity, rank=self._world.rank, state=saved))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next ``for`` loop makes the steps that would have come after it.

        Every rank loads the state that it saved at the same step, or all load what :func:`odb_stream.checkpoint.merge`
        made of them, when the number of ranks has changed; only then indexes are read here. An epoch that is running
        ends.

        Raises StateError for a state of other settings, data or ranks, or of another rank; it names what differs. That
        ranks stand at different steps is found by the first step, on all ranks.
        """
        if self._closed:
            raise ConfigError("this Loader is closed: build a new one")
        saved = begin_of(unseal(state), self._identity, self._world, self._shop.source, self._settings.seed)
        self._end_epoch()
        if self._endless is not None:
            self._endless.close()
            self._endless = None
        self._begin = saved
        self._next_epoch = saved.epoch
        self._shop.mine, self._shop.everyone = saved.mine, saved.everyone

    def _running(self) -> Epoch | None:
        return self._epoch() if self._epoch is not None else None

    def _end_epoch(self) -> None:
        epoch = self._running()
        if epoch is not None:
            epoch.close()
        if self._endless is not None and self._endless.settled:
            self._endless = None
        self._epoch = None

    def report(self) -> dict[str, Any]:
        """What was emitted, dropped, abandoned and waited for so far, as a plain dict.

        ``global`` holds the same figures over all ranks: exact for what was emitted, as of the last planned round for
        drops; what was abandoned is this rank's own.
        """
        mine, everyone = self._shop.mine, self._shop.everyone
        epoch = self._running()
        stream = epoch.stream if epoch is not None else self._endless
        if stream is not None and not stream.settled:
            mine, everyone = stream.with_drops(mine, everyone)
        budget = self._settings.budget.tokens
        return {
            **report_figures(mine, ranks=1, budget=budget),
            "sources": by_source(mine, self._shop.source.names),
            "wait_seconds": dict(self._shop.waits.seconds),
            "global": report_figures(everyone, ranks=self._world.size, budget=budget),
        }

    def close(self) -> None:
        """End the epoch, the workers and the connection to other ranks at once; never waits for a peer."""
        if self._closed:
            return
        self._closed = True
        self._end_epoch()
        if self._endless is not None:
            self._endless.close()
            self._endless = None
        self._transport.leave()
        self._shop.pool.close()
        if self._shop.last_thread is not None:
            self._shop.last_thread.join(JOIN_SECONDS)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
