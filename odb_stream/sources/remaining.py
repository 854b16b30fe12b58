"""The rest of an epoch as rows: samples that are still to come, whoever was to read them."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from odb_stream.errors import StateError
from odb_stream.sample import Remaining, SampleRef
from odb_stream.shards.ranges import Ranges


def rows_of_held(held: Iterable[tuple[SampleRef, int]]) -> list[Remaining]:
    """Samples that were read and not emitted, with their epochs, as rows of one sample each.

    The owner rank in the reference of a dataset's item is left out: whoever reads it next owns it.
    """
    rows = []
    for ref, epoch in held:
        shard = 0 if ref.offset < 0 else ref.shard
        rows.append(Remaining(ref.source, epoch, shard, ref.index, ref.index + 1))
    return rows


def rows_of_ranges(source: int, epoch: int, shard: int, ranges: Ranges) -> list[Remaining]:
    """The rows of these samples of one shard."""
    return [Remaining(source, epoch, shard, start, stop) for start, stop in ranges]


def rows_of_items(source: int, epoch: int, items: npt.NDArray[np.intp]) -> list[Remaining]:
    """The rows of these items of a dataset, shape (items,), in any order."""
    if not len(items):
        return []
    ordered = np.sort(items)
    (breaks,) = np.nonzero(np.diff(ordered) != 1)
    starts, stops = ordered[np.r_[0, breaks + 1]], ordered[np.r_[breaks, -1]] + 1
    return rows_of_ranges(source, epoch, 0, tuple(zip(starts.tolist(), stops.tolist(), strict=True)))


def items_in(rows: Sequence[Remaining]) -> npt.NDArray[np.intp]:
    """The items of rows, one row after another, shape (items,)."""
    starts = np.array([row.start for row in rows], dtype=np.intp)
    lengths = np.array([row.stop - row.start for row in rows], dtype=np.intp)
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def normalised(rows: Iterable[Remaining]) -> tuple[Remaining, ...]:
    """The rows sorted by source, epoch, shard and number, with neighbours joined.

    Raises StateError for a row without a sample, and for a sample in two rows.
    """
    joined: list[Remaining] = []
    for row in sorted(rows):
        if min(row) < 0 or row.start >= row.stop:
            raise StateError(f"{row} holds no sample: give the rows as they were made")
        last = joined[-1] if joined else None
        if last is None or last[:3] != row[:3] or last.stop < row.start:
            joined.append(row)
        elif last.stop == row.start:
            joined[-1] = Remaining(*last[:4], row.stop)
        else:
            raise StateError(
                f"sample {row.start} of shard {row.shard} (source {row.source}, pass {row.epoch}) is still to come "
                "twice: give the states that all ranks saved after the same step, each once"
            )
    return tuple(joined)


def rows_of_source(rows: Iterable[Remaining], source: int) -> tuple[Remaining, ...]:
    """The rows, normalised, which must all be of this source. Raises StateError."""
    ordered = normalised(rows)
    for row in ordered:
        if row.source != source:
            raise StateError(f"{row} is of source {row.source}, not of source {source}: give the same sources")
    return ordered


def samples_in(rows: Iterable[Remaining]) -> int:
    """How many samples there are in rows that do not overlap."""
    return sum(row.stop - row.start for row in rows)


def by_shard(rows: Sequence[Remaining]) -> list[tuple[int, int, Ranges]]:
    """Epoch, shard and ranges of normalised rows of one source, one entry for each shard of each epoch."""
    return [
        (epoch, shard, tuple((row.start, row.stop) for row in group))
        for (epoch, shard), group in groupby(rows, key=lambda row: (row.epoch, row.shard))
    ]
