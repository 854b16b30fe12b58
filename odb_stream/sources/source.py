"""The contract of every source: a declaration is opened once, then each rank reads passes of records from it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from odb_stream.config import World
from odb_stream.sample import START, Drop, ReadingPosition, Record, Remaining, SampleRef
from odb_stream.shards.ranges import Ranges

Opener = Callable[[Record], Mapping[str, Any] | Drop]
"""Turns a record into the fields of a sample, or drops it; picklable, since it runs in the workers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one shard that one rank reads: samples ``start`` (at byte ``offset``) to ``stop``.

    ``stop`` is None if the shard has no index: read to the end. With ``step`` > 1 every rank reads the whole shard and
    keeps only every ``step``-th sample, from ``start``. With ``keep`` the rank reads only those samples of the part,
    which remain of an epoch, and ``offset`` is left at 0 because the shard's index knows it. ``source`` is the number
    of the source in a mix, ``epoch`` that of the pass.
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
        """How many records this rank will read; None if that is known only after reading."""

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

        Raises StateError if that cannot be determined; another number of ranks cannot resume then.
        """


class OpenSource(Protocol):
    """A source whose data were listed; the list holds for the life of a loader."""

    @property
    def samples(self) -> int | None:
        """Records in a pass over all ranks; None if that is known only after reading."""

    @property
    def fingerprint(self) -> str:
        """A short text by which a resumed run recognises its data; the same wherever the data lie."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, by the number that references carry; one name unless it is a mix."""

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> Reading:
        """One rank's pass, the ``epoch``-th; ``source`` is the number that references carry in a mix."""

    def share_of(
        self, rows: Sequence[Remaining], world: World, *, seed: int, source: int = 0, turn: int = 0
    ) -> Reading:
        """One rank's share of what remains of an epoch; over all ranks each sample belongs to exactly one share.

        Shares differ by at most one sample; the odd samples go to the ranks from number ``turn`` on. Raises StateError
        for rows that overlap or do not fit these data, and where :meth:`Reading.remaining` does.
        """


class Source(Protocol):
    """A declaration of where samples come from; picklable, and nothing is opened before :meth:`open`."""

    def open(self) -> OpenSource:
        """List the data."""

    def opener(self) -> Opener:
        """What turns this source's records into fields, in the workers."""
