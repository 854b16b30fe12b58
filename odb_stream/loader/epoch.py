"""One run over the data: the node graph from reading to finished batches, and the iterator that a ``for`` loop gets."""

import logging
import weakref
from collections.abc import Iterator
from dataclasses import replace

from odb_stream.batching.program import Program
from odb_stream.batching.totals import StepCounter, totals_of_all_ranks, totals_of_report, totals_of_step
from odb_stream.checkpoint.reshard import place_of
from odb_stream.checkpoint.state import EarlierRanks, RunState, RunTotals
from odb_stream.errors import StageError, StateError
from odb_stream.loader.context import Passes, Shop
from odb_stream.nodes.accumulate import Accumulate
from odb_stream.nodes.align import Align, Step
from odb_stream.nodes.collate import STEP_KEY, Batch, Collate, Finished
from odb_stream.nodes.decoder import Decoder
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.loss_scale_guard import LossScaleFlag, guarded
from odb_stream.nodes.pack import Pack
from odb_stream.nodes.prefetch import Channel, Prefetch
from odb_stream.sample import PreparedSample

logger = logging.getLogger(__name__)


class Stream:
    """The node graph of one program: a pass over the data, or with a quota an endless one that serves many epochs."""

    def __init__(self, shop: Shop, begin: RunState) -> None:
        settings = shop.settings
        number = begin.pass_number
        place = None if begin.place is None else place_of(begin.place)
        self._shop = shop
        self._passes = Passes(shop, begin.remaining)
        self.settled = False
        repeat = settings.closure == "quota"
        footprint = shop.footprint
        self.drops = Drops(shop.logged_reasons, shop.quarantine)
        self.remaining = begin.remaining
        earlier = begin.earlier or EarlierRanks()
        self.drops.restore(earlier.drops if place is None else place.step.drops)
        self.pack = Pack(
            self._passes.open,
            self._passes.reread,
            settings,
            footprint,
            self.drops,
            begin=earlier.window(number) if place is None else place.round.window,
            repeat=repeat,
        )
        channel: Channel[Finished] = Channel(
            most_items=settings.lookahead, most_bytes=settings.max_bytes // 2, waits=shop.waits
        )
        self.program: Program[PreparedSample] = Program(
            rank=shop.world.rank,
            ranks=shop.world.size,
            groups=self.pack,
            saves=self.pack,
            footprint=footprint,
            seed=settings.seed,
            epoch=number,
            closing=lambda: not channel.wanted,
            rebalance=settings.rebalance,
            quota=settings.quota,
            most_bytes=settings.max_bytes,
            failure_budget=settings.failure_budget,
            resume=place,
            counter=StepCounter(earlier.steps, earlier.samples_seen),
        )
        decoder = Decoder(shop.pool, footprint, shop.waits, self.drops)
        self.align = Align(
            self.program,
            shop.transport,
            decoder,
            pad_token=settings.pad_token_id,
            dummy=shop.dummy,
            epoch=begin.epoch,
            waits=shop.waits,
            moved_in=0 if begin.place is None else begin.place.moved_in,
            moved_out=0 if begin.place is None else begin.place.moved_out,
        )
        self._taken = begin.taken
        self._prefetch = Prefetch(
            Collate(self.align, settings),
            channel=channel,
            waits=shop.waits,
            at_end=self.align.finish,
            after=shop.last_thread,
        )
        self._head: Iterator[Finished] = self._prefetch
        if settings.grad_accum > 1:
            self._head = Accumulate(
                self._prefetch, steps=settings.grad_accum, ranks=shop.world.size, rest=begin.accumulation
            )
        shop.last_thread = self._prefetch.thread

    def take(self) -> Finished:
        """The next finished batch; raises StopIteration at the end and whatever ended the stream otherwise."""
        finished = next(self._head)
        self._taken += finished.step.info.samples
        return finished

    @property
    def taken(self) -> int:
        """Samples of this rank that the training loop took."""
        return self._taken

    def close(self) -> None:
        """Stop at once; what was not taken is let go and counted."""
        self._prefetch.close()
        self.settle(ended=False)

    def settle(self, *, ended: bool) -> None:
        """Enter drops and abandoned samples into the books, once; ``ended`` tells whether the data came to an end."""
        if self.settled:
            return
        self.settled = True
        self.drops.flush()
        shop = self._shop
        shop.mine, shop.everyone = self.with_drops(shop.mine, shop.everyone)
        if ended:
            return
        here, moved = self._expected(), self.align.moved_in - self.align.moved_out
        abandoned = here + moved - self._taken - self.drops.by_reason.total()
        shop.mine = shop.mine.plus(RunTotals(abandoned=abandoned))
        shop.everyone = replace(shop.everyone, abandoned=shop.mine.abandoned)

    def with_drops(self, mine: RunTotals, everyone: RunTotals) -> tuple[RunTotals, RunTotals]:
        """These totals and what this stream dropped so far."""
        own = totals_of_report(self.pack.report(), self.drops.by_source)
        return mine.plus(own), everyone.plus(
            totals_of_report(self.program.report) if self._shop.world.size > 1 else totals_of_report(self.pack.report())
        )

    def _expected(self) -> int:
        samples = self._passes.readings[0].samples
        if samples is None or self._shop.settings.closure == "quota":
            return self.pack.received
        return samples


class Epoch(Iterator[Batch]):
    """One ``for`` loop over a stream; what ``iter(loader)`` gives. Keeps the loader, ``owner``, alive and connected."""

    def __init__(self, shop: Shop, stream: Stream, begin: RunState, owner: object) -> None:
        self._owner = owner
        self._shop = shop
        self.stream = stream
        self._number = begin.epoch
        self._emitted_by_all = begin.samples_seen
        self._scale_flag = LossScaleFlag()
        self._ended = False
        self._superseded = False
        self._finalizer = weakref.finalize(self, stream.close)

    @property
    def running(self) -> bool:
        """Whether a further batch may come."""
        return not self._ended and not self._superseded

    def __next__(self) -> Batch:
        if self._superseded:
            raise StateError(
                f"this iterator of epoch {self._number} was ended by close() or by a new iterator of the same Loader"
            )
        if self._ended:
            raise StopIteration
        try:
            batch, step = self.stream.take()
        except StopIteration:
            self._finish()
            raise
        self._emitted_by_all += step.totals.samples
        shop = self._shop
        shop.mine = shop.mine.plus(totals_of_step(step.info))
        shop.everyone = shop.everyone.plus(totals_of_all_ranks(step.totals))
        if step.ends_epoch:
            self._end()
        self._keep_state(step)
        batch[STEP_KEY] = step.info if self._shop.world.size == 1 else guarded(step.info, self._scale_flag)
        return batch

    def _keep_state(self, step: Step) -> None:
        shop = self._shop
        number = self._number + step.ends_epoch
        state = RunState(
            epoch=number,
            pass_number=self.stream.program.epoch,
            mine=shop.mine,
            everyone=shop.everyone,
            place=step.place,
            accumulation=step.accumulation,
            taken=self.stream.taken,
            remaining=None if step.ends_epoch else self.stream.remaining,
        )
        shop.states.append((step.info.step, state))

    def _end(self) -> None:
        self._ended = True
        self._finalizer.detach()

    def _finish(self) -> None:
        self._end()
        self.stream.settle(ended=True)
        following, shop = self._number + 1, self._shop
        start = RunState(epoch=following, pass_number=following, mine=shop.mine, everyone=shop.everyone)
        shop.states.append((None, start))
        self._warn_of_scale()
        dropped = self.stream.program.report.dropped
        if not self._emitted_by_all and dropped:
            raise StageError(
                f"epoch {self._number}: all {sum(dropped.values())} samples were dropped ({dropped}), nothing is left "
                "to train on; the log names the first sample of each reason"
            )

    def _warn_of_scale(self) -> None:
        """Warn once where a whole epoch went by on several ranks without a look at the loss scale."""
        shop = self._shop
        if shop.world.size > 1 and self._emitted_by_all and not (self._scale_flag.was_read or shop.warned_of_scale):
            shop.warned_of_scale = True
            logger.warning(
                "rank %d: loss_scale was not read in a whole epoch on %d ranks, so ranks with few supervised tokens "
                "weigh too much and idle steps are trained on: multiply each loss by pop_step(batch).loss_scale",
                shop.world.rank,
                shop.world.size,
            )

    def close(self) -> None:
        """End this epoch now; samples that were not emitted count as abandoned."""
        if self.running:
            self._superseded = True
            self._finalizer()
