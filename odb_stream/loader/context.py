"""What the epochs of a loader share, and how a pass over the data is opened: read, and prepared in the worker pool."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from odb_stream.batching.cost import Footprint
from odb_stream.checkpoint.reshard import decoded
from odb_stream.checkpoint.state import Encoded, HeldSample, RemainingRows, RunState, RunTotals
from odb_stream.config import Settings, World
from odb_stream.errors import OdbStreamError, StateError
from odb_stream.nodes.mixed_modality import DummyRule
from odb_stream.nodes.prepare import PrepareRecords, RecordOutcome
from odb_stream.nodes.read import CHUNK, Read
from odb_stream.nodes.waits import Waits
from odb_stream.ranks.transport import Transport
from odb_stream.sample import Drop, PreparedSample, ReadingPosition
from odb_stream.shards.quarantine import Quarantine
from odb_stream.sources.source import OpenSource, Reading
from odb_stream.workers.pool import WorkerPool


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
    mine: RunTotals = field(default_factory=RunTotals)
    everyone: RunTotals = field(default_factory=RunTotals)
    logged_reasons: set[str] = field(default_factory=set)
    last_thread: threading.Thread | None = None
    warned_of_scale: bool = False
    states: deque[tuple[int | None, RunState]] = field(default_factory=deque)
    """Where one can go on: after the last steps of the running epoch, by number (None for its start), newest last."""

    @property
    def footprint(self) -> Footprint:
        """The cost rule, with room for the dummy image where one may be needed."""
        if self.dummy is None:
            return Footprint.of(self.settings)
        image = self.dummy.image
        return Footprint.of(self.settings, dummy_tokens=image.tokens, dummy_patches=image.image.patches)

    def reading(self, number: int, remaining: Encoded[RemainingRows] | None) -> Reading:
        """Open one pass over the data, or what remains of one; the first was opened when the loader was built."""
        if remaining is not None:
            rows = decoded(remaining)
            return self.source.share_of(rows, self.world, seed=self.settings.seed)
        first, self.first_reading = self.first_reading, None
        if number == 0 and first is not None:
            return first
        return self.source.reading(self.world, seed=self.settings.seed, epoch=number)


class Passes:
    """Opens the passes of one rank over its data. Refers to no stream, so that a forgotten one can be collected."""

    def __init__(self, shop: Shop, remaining: Encoded[RemainingRows] | None) -> None:
        self._shop = shop
        self._remaining = remaining
        self.readings: list[Reading] = []

    def open(self, number: int, position: ReadingPosition) -> Iterator[RecordOutcome]:
        """The prepared records of a pass, in order, from a position on."""
        shop = self._shop
        reading = shop.reading(number, self._remaining)
        self.readings.append(reading)
        read = Read(reading, shop.waits, position)
        return PrepareRecords(read, shop.pool, workers=shop.settings.workers, waits=shop.waits)

    def reread(self, held: Sequence[HeldSample]) -> list[PreparedSample]:
        """Samples that this rank held before a resume, read and prepared again."""
        if not held:
            return []
        pool, reading = self._shop.pool, self.readings[-1]
        records = reading.fetch_all(held)
        chunks = [records[first : first + CHUNK] for first in range(0, len(records), CHUNK)]
        samples = []
        for chunk, future in [(chunk, pool.submit(chunk)) for chunk in chunks]:
            for record, outcome in zip(chunk, pool.wait(future).results(chunk), strict=False):
                if isinstance(outcome, OdbStreamError):
                    raise outcome
                if isinstance(outcome, Drop):
                    raise StateError(
                        f"{record.where} was held when the state was saved, and is dropped now ({outcome.reason} "
                        f"{outcome.detail}): go on with the same data, stages and versions"
                    )
                samples.append(outcome)
        return samples
