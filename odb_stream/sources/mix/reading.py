"""One rank's reading of a mix: its own part of each source, interleaved by the schedule, from any position on."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Literal

from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError, StateError
from odb_stream.sample import (
    START,
    MixPosition,
    PartPosition,
    Position,
    ReadingPosition,
    Record,
    Remaining,
    SampleRef,
    in_one_source,
)
from odb_stream.sources.mix.schedule import next_turn, turns_until
from odb_stream.sources.remaining import normalised, samples_in
from odb_stream.sources.source import OpenSource, Reading, Segment

Mode = Literal["weights", "once"]

REPEAT = 2**20
"""The k-th repeat of a source in epoch e is read as pass ``e + k * REPEAT``.

Epochs stay below it, so no two passes share their random draws."""
MOST_TURNS_PLAYED = 2**17
"""Turns of the schedule that are played through to count the samples of an epoch: a fraction of a second."""

MOST_EMPTY_PASSES = 64
"""Empty passes in a row before a source is an error, for a rank that had records in the first pass.

A rank's share of a small source can be empty in one pass and hold a sample in the next."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenMix:
    """The sources of a mix, opened.

    ``weights`` are whole numbers: proportions in mode "weights", passes of an epoch in mode "once".
    """

    names: tuple[str, ...]
    sources: tuple[OpenSource, ...]
    weights: tuple[int, ...]
    mode: Mode
    _warned: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def samples(self) -> int | None:
        """Records of an epoch over all ranks, in mode "once" and if every source knows its number; otherwise None.

        In mode "weights" each rank ends its epoch by its own share of the sources.
        """
        counts = [source.samples for source in self.sources]
        known = [count * weight for count, weight in zip(counts, self.weights, strict=True) if count is not None]
        return sum(known) if self.mode == "once" and len(known) == len(counts) else None

    @property
    def fingerprint(self) -> str:
        """The mode, with the name, weight and fingerprint of each source."""
        given = zip(self.names, self.weights, self.sources, strict=True)
        parts = (f"{name} ({weight}): {source.fingerprint}" for name, weight, source in given)
        return f"mix by {self.mode}: {'; '.join(parts)}"

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> "MixReading":
        """One rank's epoch. Raises ConfigError for an epoch of ``REPEAT`` or more, and within another mix."""
        if source:
            raise ConfigError("a Mix cannot be a source of another Mix: list all sources in one")
        if epoch >= REPEAT:
            raise ConfigError(f"epoch {epoch} of a Mix, which has at most {REPEAT}: start again with another seed")
        first = [one.reading(world, seed=seed, epoch=epoch, source=number) for number, one in enumerate(self.sources)]
        return MixReading(self, world, seed, epoch, tuple(first))

    def share_of(
        self, rows: Sequence[Remaining], world: World, *, seed: int, source: int = 0, turn: int = 0
    ) -> "MixReading":
        """One rank's share of what remains; see :class:`odb_stream.sources.source.OpenSource`.

        What remains of a source is read as one pass over it, whichever passes it comes from.
        """
        self.require_once()
        rows = normalised(rows)
        if source or any(row.source >= len(self.sources) for row in rows):
            raise StateError(
                f"the remaining samples do not belong to a mix of {len(self.sources)} sources: give the same mix"
            )
        left = [[row for row in rows if row.source == number] for number in range(len(self.sources))]
        readings = []
        for number, one in enumerate(self.sources):
            readings.append(one.share_of(left[number], world, seed=seed, source=number, turn=turn))
            # The ranks that get the odd samples rotate over the sources, so that no rank gets all of them.
            turn += samples_in(left[number])
        once = replace(self, weights=tuple(int(bool(own)) for own in left))
        return MixReading(once, world, seed, rows[0].epoch if rows else 0, tuple(readings))

    def require_once(self) -> None:
        """Raise StateError for a mix whose epoch depends on the number of ranks."""
        if self.mode != "once":
            raise StateError(
                "a Mix by weights ends an epoch on each rank when all its sources were read there, and how often a "
                "source is repeated until then depends on the number of ranks: resume with as many ranks as before; "
                "only mode='once' can resume with another number"
            )

    def passes_due(self, number: int) -> int:
        """How many passes over a source an epoch needs at least."""
        return self.weights[number] if self.mode == "once" else 1

    def check_empty(self, number: int, world: World) -> None:
        """Raise ConfigError for a source that has no sample at all; warn, once, if a rank alone has none of it."""
        name = self.names[number]
        if world.size == 1:
            raise empty(name)
        # In mode "once" the other ranks read all of its samples, so nothing is missing.
        if self.mode == "once" or name in self._warned:
            return
        self._warned.add(name)
        count = self.sources[number].samples
        logger.warning(
            "rank %d of %d has no sample of source %r of the mix%s: on this rank the other sources take its turns",
            world.rank,
            world.size,
            name,
            "" if count is None else f", which has {count} in all",
        )


class SourcePasses:
    """A rank's part of one source, pass after pass, from a position on; at least ``due`` passes are read.

    ``name`` names the source in messages; ``open_pass`` opens the rank's part of a pass by its number. One record is
    read ahead: whether a pass has ended is known only when its next record is asked for.
    """

    _records: Iterator[Record]
    _next: Record | None

    def __init__(
        self, name: str, open_pass: Callable[[int], Reading], start: PartPosition, *, due: int, rank: int
    ) -> None:
        self._name = name
        self._open_pass = open_pass
        self._due = due
        self._rank = rank
        self._begin(start.pass_number, start.position)
        self._continue_to_due()

    @property
    def finished(self) -> bool:
        """Whether every pass that the epoch needs has ended."""
        return self.pass_number + (self._next is None) >= self._due

    @property
    def empty(self) -> bool:
        """Whether the pass that begins here has nothing for this rank."""
        return self._next is None and self.position == START

    def take(self) -> Record:
        """The next record; a new pass begins where the current one has ended."""
        empty_passes = 0
        while self._next is None:
            if empty_passes == MOST_EMPTY_PASSES:
                raise ShardError(
                    f"{self._name} had no sample for rank {self._rank} in {MOST_EMPTY_PASSES} passes in a row, but did "
                    "before: it has too few samples for so many ranks, or its data have changed"
                )
            self._begin(self.pass_number + 1)
            empty_passes += 1
        record = self._next
        self.position = in_one_source(record.position, self._name)
        self._next = next(self._records, None)
        self._continue_to_due()
        return record

    def _begin(self, pass_number: int, position: Position = START) -> None:
        self.pass_number, self.position = pass_number, position
        self._records = iter(self._open_pass(pass_number).records(position))
        self._next = next(self._records, None)

    def _continue_to_due(self) -> None:
        while self._next is None and self.pass_number + 1 < self._due:
            self._begin(self.pass_number + 1)


@dataclass(frozen=True)
class MixReading:
    """One rank's epoch over a mix; ``first`` are the readings of the first pass over each source.

    One record of every source is read ahead, so each source holds a shuffle block from the start.
    """

    mix: OpenMix
    world: World
    seed: int
    epoch: int
    first: tuple[Reading, ...]

    @cached_property
    def samples(self) -> int | None:
        """Records that this rank reads in the epoch, repeats included; None where that is known only after reading.

        It is known if every source knows its own number, unless weights with many digits make the schedule too long
        to play through.
        """
        lengths = [reading.samples for reading in self.first]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            return None
        if self.mix.mode == "once":
            return sum(length * passes for length, passes in zip(known, self.mix.weights, strict=True))
        weights = [weight if length else 0 for length, weight in zip(known, self.mix.weights, strict=True)]
        return turns_until(weights, known, most=MOST_TURNS_PLAYED) if any(weights) else 0

    @property
    def plan(self) -> tuple[Segment, ...]:
        """What the first passes read: the segments of each source, source after source."""
        return tuple(chain.from_iterable(reading.plan for reading in self.first))

    def records(self, start: ReadingPosition = START) -> Iterator[Record]:
        """The records after position ``start``.

        Raises StateError for a position in something else, and ConfigError for a source that proves empty.
        """
        places = self._places(start)
        parts = []
        for number, (name, place) in enumerate(zip(self.mix.names, places, strict=True)):
            due, open_pass = self.mix.passes_due(number), partial(self.pass_over, number)
            part = SourcePasses(f"source {name!r} of the mix", open_pass, place, due=due, rank=self.world.rank)
            # A source of weight 0 is one of which nothing remains.
            if part.empty and self.mix.weights[number]:
                self.mix.check_empty(number, self.world)
            parts.append(part)
        turns = [place.turns for place in places]
        weights = self._weights(parts, turns)
        while not all(part.finished for part in parts):
            number = next_turn(weights, turns)
            part = parts[number]
            if part.finished and self.mix.mode == "once":
                # It had fewer records than its weight promised. The others continue as if they began here: turns
                # counted by the old weights would make the schedule catch up what this source left.
                places = [place._replace(turns=0) for place in places]
                turns = [0] * len(turns)
                weights = self._weights(parts, turns)
                continue
            record = part.take()
            turns[number] += 1
            places[number] = PartPosition(part.pass_number, part.position, turns[number])
            yield replace(record, position=MixPosition(tuple(places)))

    def fetch_all(self, held: Sequence[tuple[SampleRef, int]]) -> list[Record]:
        """Read records again, those of each source together. Raises ShardError for a source that does not exist."""
        records: dict[int, Iterator[Record]] = {}
        for number in {ref.source for ref, _ in held}:
            if not 0 <= number < len(self.first):
                raise ShardError(f"there is no source {number} in a mix of {len(self.first)}; give the same mix")
            records[number] = iter(self.first[number].fetch_all([one for one in held if one[0].source == number]))
        return [next(records[ref.source]) for ref, _ in held]

    def remaining(self, position: ReadingPosition) -> list[Remaining]:
        """What follows a position in the current pass over each source, and its later passes, as rows.

        Raises StateError in mode "weights", and where one of the sources does.
        """
        self.mix.require_once()
        rows: list[Remaining] = []
        for number, place in enumerate(self._places(position)):
            rows += self.pass_over(number, place.pass_number).remaining(place.position)
            for later in range(place.pass_number + 1, self.mix.passes_due(number)):
                rows += self.pass_over(number, later).remaining(START)
        return rows

    def pass_over(self, number: int, pass_number: int) -> Reading:
        """This rank's part of a pass over a source."""
        if not pass_number:
            return self.first[number]
        epoch = self.epoch + pass_number * REPEAT
        return self.mix.sources[number].reading(self.world, seed=self.seed, epoch=epoch, source=number)

    def _places(self, start: ReadingPosition) -> list[PartPosition]:
        sources = len(self.first)
        if start == START:
            return [PartPosition(0, START, 0)] * sources
        if isinstance(start, MixPosition) and len(start.parts) == sources:
            passes = ((part.pass_number, max(1, due)) for part, due in zip(start.parts, self.mix.weights, strict=True))
            if self.mix.mode == "weights" or all(number < most for number, most in passes):
                return list(start.parts)
        raise StateError(f"position {start} does not belong to a mix of {sources} sources; give the same mix")

    def _weights(self, parts: list[SourcePasses], turns: list[int]) -> list[int]:
        """The weight of each source in the schedule; 0 once it has ended and takes no more turns."""
        weights = list(self.mix.weights)
        if self.mix.mode == "once" and all(reading.samples is not None for reading in self.first):
            weights = [passes * (reading.samples or 1) for passes, reading in zip(weights, self.first, strict=True)]
        given = zip(parts, turns, weights, strict=True)
        return [0 if part.finished and not had else weight for part, had, weight in given]


def empty(name: str) -> ConfigError:
    """The error of a source without a sample."""
    return ConfigError(f"source {name!r} of the mix has no sample: leave it out")
