"""Reads samples again by their references: many at once, each as if it were the only one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.shards.coalescing import coalesced_ranges, coalesced_starts
from odb_stream.shards.index import ShardIndex, stale
from odb_stream.shards.ranges import Ranges, ranges_of
from odb_stream.shards.reader import Items, SampleStart, read_ranges, read_starts
from odb_stream.shards.tar.grouping import LostSample, TarSample
from odb_stream.storage.options import DEFAULT, Storage

MOST_STREAMS = 8
"""Streams that are read at once: each may hold ``Storage.read_ahead`` bytes."""


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
