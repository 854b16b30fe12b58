"""What every source is: a declaration that is opened once, and then read by each rank in passes of records."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from odb_stream.config import World
from odb_stream.sample import START, Position, Record, SampleRef

Opener = Callable[[Record], Mapping[str, Any]]
"""Turns a record into the fields of a sample; picklable, runs in the workers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one shard that one rank reads: samples ``start`` (at byte ``offset``) to ``stop``.

    ``stop`` is None where the shard has no index: read to the end. ``step`` > 1 means that every rank reads the whole
    shard and prepares only each ``step``-th sample, from ``start``.
    """

    shard: int
    address: str
    start: int = 0
    offset: int = 0
    stop: int | None = None
    step: int = 1


class Reading(Protocol):
    """One rank's pass over a source in one epoch."""

    @property
    def samples(self) -> int | None:
        """How many records this rank will read; None when only reading can tell."""

    @property
    def plan(self) -> tuple[Segment, ...]:
        """What this rank reads, in order (empty for a map-style dataset)."""

    def records(self, start: Position = START) -> Iterator[Record]:
        """The records from a position on, in this epoch's order."""

    def fetch(self, ref: SampleRef) -> Record:
        """Read one record again by its reference (one ranged read)."""


class OpenSource(Protocol):
    """A source whose data were listed; what was found then holds for the life of a loader."""

    @property
    def samples(self) -> int | None:
        """Records in a pass over all ranks; None when only reading can tell."""

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> Reading:
        """One rank's pass, the ``epoch``-th; ``source`` is the number that references carry in a mix."""


class Source(Protocol):
    """A declaration of where samples come from; picklable, opens nothing by itself."""

    def open(self) -> OpenSource:
        """List the data."""

    def opener(self) -> Opener:
        """What turns this source's records into fields, in the workers."""
