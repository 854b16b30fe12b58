"""What remains of an epoch, as rows of samples, whichever rank was to read them."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from odb_stream.errors import StateError
from odb_stream.sample import Remaining, SampleRef
from odb_stream.shards.ranges import Ranges


def rows_of_held(held: Iterable[tuple[SampleRef, int]]) -> list[Remaining]:
    """Samples that were read but not emitted, with their epochs, as rows of one sample each.

    A dataset's item has its owner rank as its shard; that is dropped here, since the next reader becomes the owner.
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
    """The items of rows, row after row, shape (items,)."""
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
            raise StateError(f"{row} holds no sample: pass the rows unchanged")
        last = joined[-1] if joined else None
        if last is None or last[:3] != row[:3] or last.stop < row.start:
            joined.append(row)
        elif last.stop == row.start:
            joined[-1] = Remaining(*last[:4], row.stop)
        else:
            raise StateError(
                f"sample {row.start} of shard {row.shard} (source {row.source}, pass {row.epoch}) remains twice: pass "
                "the states that all ranks saved after the same step, each once"
            )
    return tuple(joined)


def rows_of_source(rows: Iterable[Remaining], source: int) -> tuple[Remaining, ...]:
    """The rows, normalised. Raises StateError unless all of them belong to this source."""
    ordered = normalised(rows)
    for row in ordered:
        if row.source != source:
            raise StateError(f"{row} belongs to source {row.source}, not to source {source}: give the same sources")
    return ordered


def samples_in(rows: Iterable[Remaining]) -> int:
    """How many samples rows without overlap hold."""
    return sum(row.stop - row.start for row in rows)


def by_shard(rows: Sequence[Remaining]) -> list[tuple[int, int, Ranges]]:
    """Epoch, shard and ranges of normalised rows of one source, one entry for each shard of each epoch."""
    return [
        (epoch, shard, tuple((row.start, row.stop) for row in group))
        for (epoch, shard), group in groupby(rows, key=lambda row: (row.epoch, row.shard))
    ]
