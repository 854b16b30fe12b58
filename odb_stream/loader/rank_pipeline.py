"""RankPipeline: everything between one rank's data and its finished batches, connected and running."""

import threading
from collections.abc import Iterator

from odb_stream.batching.program import Program
from odb_stream.batching.totals import StepCounter
from odb_stream.checkpoint.reshard import decoded, place_of
from odb_stream.checkpoint.state import EarlierRanks, RunState
from odb_stream.loader.context import LoaderContext
from odb_stream.loader.pass_opener import PassOpener
from odb_stream.loader.statistics import Dropped, RunStatistics
from odb_stream.nodes.accumulate import Accumulate
from odb_stream.nodes.align import Align, Step
from odb_stream.nodes.collate import Finished, collate
from odb_stream.nodes.decoder import Decoder
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.pack import Pack
from odb_stream.nodes.prefetch import Channel, Prefetch
from odb_stream.sample import PreparedSample
from odb_stream.sources.source import Reading


class RankPipeline:
    """Reads, packs, aligns and collates in a background thread, which starts at once, from ``begin`` on.

    With ``closure="join"`` it serves one epoch, a pass over the data. With a quota it is endless and serves many.
    ``first_reading`` is the reading of epoch 0, if it is still unused. ``after`` is the thread of the pipeline before,
    which has to end first.
    """

    def __init__(
        self,
        context: LoaderContext,
        statistics: RunStatistics,
        begin: RunState,
        *,
        first_reading: Reading | None,
        after: threading.Thread | None,
    ) -> None:
        settings, footprint, waits = context.settings, context.footprint, statistics.waits
        place = None if begin.place is None else place_of(begin.place)
        earlier = begin.earlier or EarlierRanks()
        self._context = context
        self._statistics = statistics
        self._remaining = begin.remaining
        self._taken = begin.taken
        self._passes = PassOpener(
            context,
            waits,
            remaining=None if begin.remaining is None else decoded(begin.remaining),
            first=first_reading,
        )
        self._drops = Drops(statistics.logged_reasons, context.quarantine)
        self._drops.restore(earlier.drops if place is None else place.step.drops)
        self._pack = Pack(
            self._passes.open,
            self._passes.reread,
            settings,
            footprint,
            self._drops,
            begin=earlier.window(begin.pass_number) if place is None else place.round.window,
            repeat=settings.closure == "quota",
        )
        channel = Channel(
            most_items=settings.lookahead,
            # The other half is for decoded images: a quarter for each of the two bursts in the decoder.
            most_bytes=settings.max_bytes // 2,
            waits=waits,
        )
        self._program: Program[PreparedSample] = Program(
            rank=context.world.rank,
            ranks=context.world.size,
            groups=self._pack,
            saves=self._pack,
            footprint=footprint,
            seed=settings.seed,
            epoch=begin.pass_number,
            # Refers to the channel and not to this object, which the background thread must not keep alive.
            closing=lambda: not channel.wanted,
            rebalance=settings.rebalance,
            quota=settings.quota,
            most_bytes=settings.max_bytes,
            failure_budget=settings.failure_budget,
            resume=place,
            counter=StepCounter(earlier.steps, earlier.samples_seen),
        )
        self._align = Align(
            self._program,
            context.transport,
            Decoder(context.pool, footprint, waits, self._drops),
            pad_token=settings.pad_token_id,
            dummy=context.dummy,
            epoch=begin.epoch,
            waits=waits,
            moved_in=0 if begin.place is None else begin.place.moved_in,
            moved_out=0 if begin.place is None else begin.place.moved_out,
        )
        self._prefetch = Prefetch(
            collate(self._align, settings), channel=channel, waits=waits, at_end=self._align.finish, after=after
        )
        self._finished: Iterator[Finished] = self._prefetch
        if settings.grad_accum > 1:
            self._finished = Accumulate(
                self._prefetch, steps=settings.grad_accum, ranks=context.world.size, rest=begin.accumulation
            )
        self.thread = self._prefetch.thread
        self.settled = False
        """Whether this pipeline has ended and its drops are in the statistics."""

    def take(self) -> Finished:
        """The next finished batch. Raises StopIteration at the end, and whatever ended the pipeline otherwise."""
        finished = next(self._finished)
        self._taken += finished.step.info.samples
        return finished

    def state_after(self, step: Step, *, epoch: int) -> RunState:
        """The state of the run after the step that was taken last; ``epoch`` is that of the next step."""
        return RunState(
            epoch=epoch,
            pass_number=self._program.epoch,
            mine=self._statistics.mine,
            everyone=self._statistics.everyone,
            place=step.place,
            accumulation=step.accumulation,
            taken=self._taken,
            remaining=None if step.ends_epoch else self._remaining,
        )

    def dropped(self) -> Dropped:
        """What was dropped so far."""
        mine = self._pack.report()
        # A single rank uses its own report, which is newer: that of all ranks is as of the last round header.
        everyone = self._program.report if self._context.world.size > 1 else mine
        return Dropped(mine, self._drops.by_source, everyone)

    def dropped_by_all_ranks(self) -> dict[str, int]:
        """What all ranks dropped, by reason, as of the last round header."""
        return self._program.report.dropped

    def close(self) -> None:
        """Stop at once; samples that were not taken count as abandoned."""
        self._prefetch.close()
        self.settle(ended=False)

    def settle(self, *, ended: bool) -> None:
        """Enter drops and abandoned samples into the statistics, once. ``ended``: the data ended, none is abandoned."""
        if self.settled:
            return
        self.settled = True
        self._drops.flush()
        self._statistics.count_dropped(self.dropped())
        if ended:
            return
        expected = self._passes.samples
        if expected is None or self._context.settings.closure == "quota":
            expected = self._pack.received  # the full number is unknown, so only what arrived can be abandoned
        moved = self._align.moved_in - self._align.moved_out
        self._statistics.count_abandoned(expected + moved - self._taken - self._drops.by_reason.total())
