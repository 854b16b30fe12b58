"""One run over the data: the node graph from reading to finished batches, and the iterator that a ``for`` loop gets."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchdata.nodes import BaseNode

from odb_stream.batching.footprint import Footprint
from odb_stream.batching.ledger import Ledger
from odb_stream.batching.protocol import Program
from odb_stream.config import Settings, World
from odb_stream.elastic import reading_of
from odb_stream.errors import OdbStreamError, StageError, StateError
from odb_stream.metrics import Totals
from odb_stream.nodes.accumulate import Accumulate
from odb_stream.nodes.align import Align, Step
from odb_stream.nodes.collate import STEP_KEY, Batch, Collate, Finished
from odb_stream.nodes.decoder import Decoder
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.modality import DummyRule
from odb_stream.nodes.pack import Held, Pack
from odb_stream.nodes.prefetch import Prefetch
from odb_stream.nodes.prepare import Outcome, PrepareRecords
from odb_stream.nodes.read import CHUNK, Read
from odb_stream.resume import Carried, Saved
from odb_stream.runtime.channel import Channel
from odb_stream.runtime.transport import Transport
from odb_stream.runtime.waits import Waits
from odb_stream.runtime.workers import WorkerPool
from odb_stream.sample import Drop, PreparedSample, ReadingPosition
from odb_stream.shardio.quarantine import Quarantine
from odb_stream.shardio.source import OpenSource, Reading


@dataclass
class Shop:
    """What all epochs of a loader share: the declaration, the processes, the connection to other ranks, the books."""

    source: OpenSource
    settings: Settings
    world: World
    pool: WorkerPool
    transport: Transport
    first_reading: Reading | None
    dummy: DummyRule | None = None
    quarantine: Quarantine | None = None
    waits: Waits = field(default_factory=Waits)
    mine: Totals = field(default_factory=Totals)
    everyone: Totals = field(default_factory=Totals)
    logged_reasons: set[str] = field(default_factory=set)
    last_thread: threading.Thread | None = None
    states: deque[tuple[int | None, Saved]] = field(default_factory=deque)
    """Where one can go on: after the last steps of the running epoch, by number (None for its start), newest last."""

    @property
    def footprint(self) -> Footprint:
        """The cost rule, with room for the dummy image where one may be needed."""
        if self.dummy is None:
            return Footprint.of(self.settings)
        image = self.dummy.image
        return Footprint.of(self.settings, dummy_tokens=image.tokens, dummy_patches=image.image.patches)

    def reading(self, number: int, rest: str | None) -> Reading:
        """Open one pass over the data, or its ``rest``; the first was opened when the loader was built."""
        if rest is not None:
            return reading_of(rest, self.source, self.world, self.settings.seed)
        first, self.first_reading = self.first_reading, None
        if number == 0 and first is not None:
            return first
        return self.source.reading(self.world, seed=self.settings.seed, epoch=number)


class Passes:
    """Opens the passes of one rank over its data. Refers to no stream, so that a forgotten one can be collected."""

    def __init__(self, shop: Shop, rest: str | None) -> None:
        self._shop = shop
        self._rest = rest
        self.readings: list[Reading] = []

    def open(self, number: int, position: ReadingPosition) -> BaseNode[Outcome]:
        """The prepared records of a pass, in order, from a position on."""
        shop = self._shop
        reading = shop.reading(number, self._rest)
        self.readings.append(reading)
        read = Read(reading, shop.waits, position)
        return PrepareRecords(read, shop.pool, workers=shop.settings.workers, waits=shop.waits)

    def reread(self, held: Sequence[Held]) -> list[PreparedSample]:
        """Samples that this rank held before a resume, read and prepared again."""
        if not held:
            return []
        pool, reading = self._shop.pool, self.readings[-1]
        records = reading.fetch_all(held)
        chunks = [records[first : first + CHUNK] for first in range(0, len(records), CHUNK)]
        samples = []
        for chunk, future in [(chunk, pool.submit(chunk)) for chunk in chunks]:
            for record, outcome in zip(chunk, pool.wait(future).outcomes(chunk), strict=False):
                if isinstance(outcome, OdbStreamError):
                    raise outcome
                if isinstance(outcome, Drop):
                    raise StateError(
                        f"{record.where} was held when the state was saved, and is dropped now ({outcome.reason} "
                        f"{outcome.detail}): go on with the same data, stages and versions"
                    )
                samples.append(outcome)
        return samples


class Stream:
    """The node graph of one program: a pass over the data, or with a quota an endless one that serves many epochs."""

    def __init__(self, shop: Shop, begin: Saved) -> None:
        settings = shop.settings
        number = begin.stream
        place = None if begin.step is None else begin.step.begin()
        self._shop = shop
        self._passes = Passes(shop, begin.rest)
        self.settled = False
        repeat = settings.closure == "quota"
        footprint = shop.footprint
        self.drops = Drops(shop.logged_reasons, shop.quarantine)
        self.rest = begin.rest
        carried = begin.carried or Carried(0, 0)
        self.drops.restore(carried.drops if place is None else place.progress.packer)
        self.pack = Pack(
            self._passes.open,
            self._passes.reread,
            settings,
            footprint,
            self.drops,
            begin=carried.packer(number) if place is None else place.round.packer,
            repeat=repeat,
        )
        channel: Channel[Finished] = Channel(
            most_items=settings.lookahead, most_bytes=settings.max_bytes // 2, waits=shop.waits
        )
        self.program: Program[PreparedSample] = Program(
            rank=shop.world.rank,
            ranks=shop.world.size,
            packer=self.pack,
            footprint=footprint,
            seed=settings.seed,
            epoch=number,
            closing=lambda: not channel.wanted,
            rebalance=settings.rebalance,
            quota=settings.quota,
            most_bytes=settings.max_bytes,
            failure_budget=settings.failure_budget,
            resume=place,
            ledger=Ledger(carried.steps, carried.samples_seen),
        )
        decoder = Decoder(shop.pool, footprint, shop.waits, self.drops)
        self.align = Align(
            self.program,
            shop.transport,
            decoder,
            pad_token=settings.pad_token_id,
            dummy=shop.dummy,
            epoch=begin.epoch,
        )
        self.align.taken = begin.taken
        if begin.step is not None:
            self.align.moved_in, self.align.moved_out = begin.step.moved_in, begin.step.moved_out
        self._prefetch = Prefetch(
            Collate(self.align, settings),
            channel=channel,
            waits=shop.waits,
            at_end=self.align.finish,
            after=shop.last_thread,
        )
        self._head: BaseNode[Finished] = self._prefetch
        if settings.grad_accum > 1:
            self._head = Accumulate(
                self._prefetch, steps=settings.grad_accum, ranks=shop.world.size, rest=begin.accumulation
            )
        shop.last_thread = self._prefetch.thread
        self._prefetch.start()

    def take(self) -> Finished:
        """The next finished batch; raises StopIteration at the end and whatever ended the stream otherwise."""
        finished: Finished = next(self._head)
        return finished

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
        self.add_to(self._shop.mine, self._shop.everyone)
        if ended:
            return
        here, moved = self._expected(), self.align.moved_in - self.align.moved_out
        self._shop.mine.abandoned += here + moved - self.align.taken - self.drops.by_reason.total()
        self._shop.everyone.abandoned = self._shop.mine.abandoned

    def add_to(self, mine: Totals, everyone: Totals) -> None:
        """Add what this stream dropped so far."""
        mine.add(self.pack.account(), self.drops.by_source)
        everyone.add(self.program.account if self._shop.world.size > 1 else self.pack.account())

    def _expected(self) -> int:
        samples = self._passes.readings[0].samples
        if samples is None or self._shop.settings.closure == "quota":
            return self.pack.received
        return samples


class Epoch(Iterator[Batch]):
    """One ``for`` loop over a stream; what ``iter(loader)`` gives. Keeps the loader, ``owner``, alive and connected."""

    def __init__(self, shop: Shop, stream: Stream, begin: Saved, owner: object) -> None:
        self._owner = owner
        self._shop = shop
        self.stream = stream
        self._number = begin.epoch
        self._emitted_by_all = begin.samples_seen
        self._ended = False
        self._superseded = False

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
        self.stream.align.taken += step.info.samples
        self._emitted_by_all += step.totals.samples
        self._shop.mine.count(step.info)
        self._shop.everyone.count_all(step.totals)
        self._ended = step.ends_epoch
        self._keep_state(step)
        batch[STEP_KEY] = step.info
        return batch

    def _keep_state(self, step: Step) -> None:
        shop = self._shop
        number = self._number + step.ends_epoch
        stream, taken = self.stream.program.epoch, self.stream.align.taken
        rest = None if step.ends_epoch else self.stream.rest
        saved = Saved(
            number, stream, shop.mine.copy(), shop.everyone.copy(), step.state, step.accumulation, taken, rest
        )
        shop.states.append((step.info.step, saved))

    def _finish(self) -> None:
        self._ended = True
        self.stream.settle(ended=True)
        following, shop = self._number + 1, self._shop
        shop.states.append((None, Saved(following, following, shop.mine.copy(), shop.everyone.copy())))
        dropped = self.stream.program.account.dropped
        if not self._emitted_by_all and dropped:
            raise StageError(
                f"epoch {self._number}: all {sum(dropped.values())} samples were dropped ({dropped}), nothing is left "
                "to train on; the log names the first sample of each reason"
            )

    def close(self) -> None:
        """End this epoch now; samples that were not emitted count as abandoned."""
        if self.running:
            self._superseded = True
            self.stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_superseded"):
            self.close()
