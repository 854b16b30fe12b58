"""What every source is: a declaration that is opened once, and then read by each rank in passes of records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from odb_stream.config import World
from odb_stream.sample import START, Drop, ReadingPosition, Record, Remaining, SampleRef
from odb_stream.shards.ranges import Ranges

Opener = Callable[[Record], Mapping[str, Any] | Drop]
"""Turns a record into the fields of a sample, or drops it; picklable, runs in the workers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one shard that one rank reads: samples ``start`` (at byte ``offset``) to ``stop``.

    ``stop`` is None where the shard has no index: read to the end. ``step`` > 1 means that every rank reads the whole
    shard and prepares only each ``step``-th sample, from ``start``. With ``keep`` the rank reads of the stretch only
    what is still to come of an epoch, and ``offset`` is left at 0, for the shard's index knows it. ``source`` is the
    number of the source in a mix, ``epoch`` that of the pass.
    """

    shard: int
    address: str
    start: int = 0
    offset: int = 0
    stop: int | None = None
    step: int = 1
    keep: Ranges | None = None
    source: int = 0
    epoch: int = 0

    def ranges(self, samples: int) -> Ranges:
        """The numbers to read from a shard of ``samples`` samples, before ``step`` picks every step-th of them."""
        return self.keep if self.keep is not None else ((self.start, samples if self.stop is None else self.stop),)


class Reading(Protocol):
    """One rank's pass over a source in one epoch."""

    @property
    def samples(self) -> int | None:
        """How many records this rank will read; None when only reading can tell."""

    @property
    def plan(self) -> tuple[Segment, ...]:
        """What this rank reads, in order (empty for a map-style dataset)."""

    def records(self, start: ReadingPosition = START) -> Iterator[Record]:
        """The records from a position on, in this epoch's order."""

    def fetch_all(self, held: Sequence[tuple[SampleRef, int]]) -> list[Record]:
        """Read records again, each by its reference and its pass, in the order given; neighbours share a request.

        Raises ShardError for a reference that these data do not have, and for a sample that was damaged since.
        """

    def remaining(self, position: ReadingPosition) -> list[Remaining]:
        """What this rank has still to read after a position, in rows that do not overlap.

        Raises StateError where that cannot be told, so that no other number of ranks can go on with it.
        """


class OpenSource(Protocol):
    """A source whose data were listed; what was found then holds for the life of a loader."""

    @property
    def samples(self) -> int | None:
        """Records in a pass over all ranks; None when only reading can tell."""

    @property
    def fingerprint(self) -> str:
        """What tells these data from others when a run goes on: a short text, the same wherever they lie."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the sources are called, by the number that references carry; one unless it is a mix."""

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> Reading:
        """One rank's pass, the ``epoch``-th; ``source`` is the number that references carry in a mix."""

    def share_of(
        self, rows: Sequence[Remaining], world: World, *, seed: int, source: int = 0, turn: int = 0
    ) -> Reading:
        """One rank's share of what is still to come; over all ranks each sample belongs to exactly one share.

        Shares differ by at most one sample; the odd ones fall to the ranks from number ``turn`` on. Raises StateError
        for rows that overlap or do not fit these data, and where :meth:`Reading.remaining` does.
        """


class Source(Protocol):
    """A declaration of where samples come from; picklable, opens nothing by itself."""

    def open(self) -> OpenSource:
        """List the data."""

    def opener(self) -> Opener:
        """What turns this source's records into fields, in the workers."""
