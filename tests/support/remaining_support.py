"""What is left of a pass over several ranks, in words and in rows: helpers for tests of going on elsewhere."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from odb_stream.config import World
from odb_stream.sample import START, ReadingPosition, Record, Remaining, position_from, position_state
from odb_stream.sources.remaining import normalised, rows_of_held
from odb_stream.sources.source import OpenSource, Reading


class Identity(NamedTuple):
    """One sample of one pass."""

    source: int
    epoch: int
    shard: int
    index: int


def identity(record: Record) -> Identity:
    """A record's identity; the owner rank of a dataset's item is none of it."""
    (row,) = rows_of_held([(record.ref, record.epoch)])
    return Identity(*row[:4])


def identities(rows: Sequence[Remaining]) -> Counter[Identity]:
    """The samples of rows."""
    return Counter(Identity(*row[:3], index) for row in rows for index in range(row.start, row.stop))


def after(records: list[Record], cut: int) -> ReadingPosition:
    """The position after so many records."""
    return records[cut - 1].position if cut else START


def check_cuts(reading: Reading, *, every: int = 1) -> list[Record]:
    """The records of a reading. From each position, after a journey through JSON, exactly the others follow."""
    records = list(reading.records())
    assert reading.samples in (None, len(records))
    for cut in range(0, len(records) + 1, every):
        position = position_from(json.loads(json.dumps(position_state(after(records, cut)))))
        assert list(reading.records(position)) == records[cut:]
    return records


def check_reading(reading: Reading) -> list[Record]:
    """The same, and what remains after each position is told as rows."""
    records = check_cuts(reading)
    assert reading.samples is not None
    for cut in range(len(records) + 1):
        rows = reading.remaining(after(records, cut))
        assert identities(rows) == Counter(map(identity, records[cut:]))
    return records


def check_going_on(
    source: OpenSource, sizes: Sequence[int], everything: Counter[Identity], data: st.DataObject
) -> None:
    """Stop and go on again and again, each time on another number of ranks: each sample is emitted once."""
    seed, epoch = 5, 2
    readings: list[Reading] = [source.reading(World(r, sizes[0]), seed=seed, epoch=epoch) for r in range(sizes[0])]
    emitted: Counter[Identity] = Counter()
    for size in sizes[1:]:
        rows: list[Remaining] = []
        for reading in readings:
            records = check_reading(reading)
            # Each rank stops at a drawn cut; some of the records before it are held and not emitted.
            cut = data.draw(st.integers(0, len(records)))
            held = data.draw(st.sets(st.integers(0, cut - 1), max_size=5)) if cut else set()
            rows += reading.remaining(after(records, cut))
            rows += rows_of_held((records[place].ref, records[place].epoch) for place in held)
            emitted.update(identity(record) for place, record in enumerate(records[:cut]) if place not in held)
        left = normalised(rows)
        assert emitted + identities(left) == everything
        readings = [source.share_of(left, World(rank, size), seed=seed) for rank in range(size)]
        counts = [reading.samples or 0 for reading in readings]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == identities(left).total()
    for reading in readings:
        emitted.update(map(identity, check_reading(reading)))
    assert emitted == everything
