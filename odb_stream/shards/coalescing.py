"""Chosen samples of an indexed shard by stretches: near ones come from one stream, and far ones from another."""

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from odb_stream import storage
from odb_stream.config import MEBIBYTE
from odb_stream.shards.index import ShardIndex, stale
from odb_stream.shards.ranges import Spans
from odb_stream.shards.tar import raising
from odb_stream.shards.tar.byte_cursor import Tape
from odb_stream.shards.tar.grouping import Grouping, TarSample
from odb_stream.shards.tar.walk import walk
from odb_stream.storage.options import DEFAULT, Storage

MOST_SKIPPED = MEBIBYTE
"""Bytes that are read over rather than ask anew for what lies behind them.

A store answers a request after 10 to 50 ms, and sends a megabyte or more in that time; from a disk a megabyte comes as
fast as a seek.
"""

Item = TypeVar("Item")


def stretches(wanted: Iterable[Item], gap: Callable[[Item, Item], float]) -> list[list[Item]]:
    """What is wanted, in order, in lists: a new one begins where more than ``MOST_SKIPPED`` bytes lie in between.

    ``gap`` tells how many bytes lie between two neighbours.
    """
    lists: list[list[Item]] = []
    for item in wanted:
        if lists and gap(lists[-1][-1], item) <= MOST_SKIPPED:
            lists[-1].append(item)
        else:
            lists.append([item])
    return lists


def spans_together(spans: Spans, index: ShardIndex) -> list[Spans]:
    """Spans of an indexed shard as stretches."""

    def gap(one: tuple[int, int], other: tuple[int, int]) -> int:
        return index.offsets[other[0]] - index.offsets[one[1]]

    return [tuple(stretch) for stretch in stretches(spans, gap)]


def read_spans(
    address: str, index: ShardIndex, spans: Spans, options: Storage = DEFAULT
) -> Generator[TarSample, None, None]:
    """The samples of these spans, from one stream; what lies between them does not matter.

    Raises ShardError for everything that is wrong with them, and where the shard is not the one that was indexed. That
    each sample is the one which the index means is left to the caller.
    """
    begin = index.offsets[spans[0][0]]
    with storage.open_stream(address, begin, options) as stream:
        tape = Tape(storage.log_name(address), stream, begin)
        for start, stop in spans:
            offset, limit = index.offsets[start], None if stop == index.samples else index.offsets[stop]
            if offset < tape.at or (limit is not None and limit <= offset):
                raise stale(address, f"its byte offsets are not in order at sample {start}")
            go_to(tape, offset, limit)
            following = start
            for sample in Grouping(tape, start, raising(address)).items(walk(tape)):
                if isinstance(sample, TarSample):
                    following = sample.index + 1
                    yield sample
            if following < stop:
                raise stale(address, f"the index has {index.samples} samples, the shard ends after {following}")


def go_to(tape: Tape, offset: int, limit: int | None) -> None:
    """Stand at a byte that lies ahead, and read from there no further than to ``limit``."""
    tape.limit = None
    tape.advance(offset)
    tape.start, tape.limit = offset, limit
