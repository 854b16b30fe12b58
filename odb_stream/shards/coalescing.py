"""Merges requests for nearby samples of a shard where reading the gap is cheaper than skipping it."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from odb_stream.config import MEBIBYTE
from odb_stream.shards.index import ShardIndex
from odb_stream.shards.ranges import Ranges
from odb_stream.shards.reader import SampleStart

MOST_SKIPPED = MEBIBYTE
"""The longest gap, in bytes, that is read over instead of making another request for what lies behind it.

A store answers a request after 10 to 50 ms, and sends a megabyte or more in that time; a disk reads a megabyte as fast
as it seeks.
"""

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
