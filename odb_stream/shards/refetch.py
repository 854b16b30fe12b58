"""Reads chosen samples with few requests: near ones share one. Samples are read again so, many at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from odb_stream import storage
from odb_stream.config import MEBIBYTE
from odb_stream.errors import ShardError
from odb_stream.shards.index import ShardIndex, stale
from odb_stream.shards.ranges import Ranges, ranges_of
from odb_stream.shards.reader import Items, SampleStart, read_ranges, read_starts
from odb_stream.shards.tar.grouping import LostSample, TarSample
from odb_stream.storage.options import DEFAULT, Storage

MOST_SKIPPED = MEBIBYTE
"""The longest gap, in bytes, that is read over instead of making another request for what lies behind it.

A store answers a request after 10 to 50 ms, and sends a megabyte or more in that time; a disk reads a megabyte as fast
as it seeks.
"""
MOST_STREAMS = 8
"""Streams that are read at once: each may hold ``Storage.read_ahead`` bytes."""

Wanted = TypeVar("Wanted")


def coalesced_ranges(ranges: Ranges, index: ShardIndex) -> list[Ranges]:
    """The ranges of an indexed shard, in one tuple for each request."""

    def gap(one: tuple[int, int], other: tuple[int, int]) -> int:
        return index.offsets[other[0]] - index.offsets[one[1]]

    return [tuple(near) for near in _coalesced(ranges, gap)]


def coalesced_starts(starts: Iterable[SampleStart]) -> list[list[SampleStart]]:
    """Starts of samples of a shard without an index, in one list for each request."""

    def gap(one: SampleStart, other: SampleStart) -> float:
        # Without an index nobody knows how long each sample is: those from one start to the other count as the mean.
        steps = max(1, other.number - one.number)
        return (other.offset - one.offset) * (steps - 1) / steps

    return _coalesced(starts, gap)


def _coalesced(wanted: Iterable[Wanted], gap: Callable[[Wanted, Wanted], float]) -> list[list[Wanted]]:
    """Ascending items in lists; a new list begins after a gap of more than ``MOST_SKIPPED`` bytes."""
    lists: list[list[Wanted]] = []
    for item in wanted:
        if lists and gap(lists[-1][-1], item) <= MOST_SKIPPED:
            lists[-1].append(item)
        else:
            lists.append([item])
    return lists


def refetch(
    starts: Mapping[str, Sequence[SampleStart]],
    *,
    index_of: Callable[[str], ShardIndex | None],
    skip_damaged: bool,
    options: Storage = DEFAULT,
) -> dict[tuple[str, int], TarSample]:
    """The samples at these starts of each shard, by address and byte offset; starts ascend and are distinct.

    ``index_of`` gives a shard's index, if it has one. Raises ShardError, with the place, where no sample starts, and
    for a sample that is damaged: it was intact when it was first read, so losing it is an error and not a drop.
    """
    indexes = storage.concurrently(index_of, list(starts), most=MOST_STREAMS)
    streams: list[tuple[str, Items]] = []
    for (address, wanted), index in zip(starts.items(), indexes, strict=True):
        if index is None:
            streams += [(address, read_starts(address, near, options)) for near in coalesced_starts(wanted)]
        else:
            for near in coalesced_ranges(_indexed(address, wanted, index), index):
                streams.append((address, read_ranges(address, index, near, skip_damaged=skip_damaged, options=options)))
    found = storage.concurrently(_whole, [items for _, items in streams], most=MOST_STREAMS)
    return {
        (address, sample.offset): sample
        for (address, _), samples in zip(streams, found, strict=True)
        for sample in samples
    }


def _indexed(address: str, starts: Sequence[SampleStart], index: ShardIndex) -> Ranges:
    """The ranges of these samples. Raises ShardError where the index has none of them at its byte offset."""
    for offset, number in starts:
        if not (0 <= number < index.samples and index.offsets[number] == offset):
            raise stale(address, f"it knows no sample {number} at byte offset {offset}")
    return ranges_of(start.number for start in starts)


def _whole(items: Items) -> list[TarSample]:
    """All of these samples. Raises ShardError for a lost one."""
    samples = []
    with closing(items):
        for item in items:
            if isinstance(item, LostSample):
                raise ShardError(item.drop.detail)
            samples.append(item)
    return samples
