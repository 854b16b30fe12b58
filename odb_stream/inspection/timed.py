"""A twin of Prepare that tells how long each stage took: it runs the same code, with a clock around each call."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from odb_stream.errors import OdbStreamError
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.prepare.records import Prepare, prepare_for
from odb_stream.sample import Drop, PreparedSample, Record, Sample
from odb_stream.sources.pipeline import Pipeline

WHOLE = -1
OPENER = 0

Place = tuple[int, int]
"""What was timed: the number of the source, and ``OPENER``, ``WHOLE`` (the record's whole way) or 1 + the stage's."""


class Spent(NamedTuple):
    """So many calls took so many seconds."""

    calls: int
    seconds: float

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.calls + other.calls, self.seconds + other.seconds)


NOTHING = Spent(0, 0.0)


class Clock:
    """Adds up the time of calls by place. ``warm`` tells that this process has prepared a record before."""

    def __init__(self) -> None:
        self.warm = False
        self._spent: defaultdict[Place, Spent] = defaultdict(lambda: NOTHING)

    @contextlib.contextmanager
    def on(self, place: Place) -> Iterator[None]:
        """Count the time of the block under a place."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[place] = self._spent[place].plus(Spent(1, time.perf_counter() - started))

    def take(self) -> dict[Place, Spent]:
        """What was counted since the last time, which is forgotten here."""
        spent = dict(self._spent)
        self._spent.clear()
        return spent

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a new clock: each process has its own."""
        return Clock, ()


@dataclass(frozen=True, slots=True)
class TimedChunk(PreparedChunk):
    """A prepared chunk with the time that its records took."""

    spent: dict[Place, Spent]

    @classmethod
    def of(cls, chunk: PreparedChunk, spent: dict[Place, Spent]) -> "TimedChunk":
        """A chunk, and what its records took."""
        return cls(
            input_ids=chunk.input_ids,
            labels=chunk.labels,
            lengths=chunk.lengths,
            supervised=chunk.supervised,
            drops=chunk.drops,
            failure=chunk.failure,
            vision=chunk.vision,
            spent=spent,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as any chunk does, with the times."""
        _, arguments = PreparedChunk.__reduce__(self)
        return TimedChunk, (*arguments, self.spent)


@dataclass(frozen=True)
class TimedPrepare(Prepare):
    """Prepares as Prepare does; its chunks are TimedChunks.

    The first record of a process is prepared once more before, untimed: whatever is loaded on first use would else
    be counted as the stage's own work.
    """

    clock: Clock = field(default_factory=Clock, compare=False, repr=False)

    @classmethod
    def of(cls, pipeline: Pipeline, seed: int) -> "TimedPrepare":
        """The twin of what the workers of a pipeline run."""
        return cls(prepare_for(pipeline, seed).lanes, seed)

    def record(self, record: Record) -> PreparedSample | Drop:
        """Prepare one record, timed."""
        with self.clock.on((record.ref.source, WHOLE)):
            return super().record(record)

    def call(self, stage: Callable[[Any], Any], argument: Record | Sample, where: str) -> Mapping[str, Any] | Drop:
        """Call an opener or a stage, timed."""
        place = argument.stage + 1 if isinstance(argument, Sample) else OPENER
        with self.clock.on((argument.ref.source, place)):
            return super().call(stage, argument, where)

    def chunk(self, records: Sequence[Record]) -> TimedChunk:
        """Prepare records in order, timed."""
        if not self.clock.warm:
            self.clock.warm = True
            with contextlib.suppress(OdbStreamError):  # the second time it counts
                super().record(records[0])
            self.clock.take()
        chunk = super().chunk(records)
        return TimedChunk.of(chunk, self.clock.take())
