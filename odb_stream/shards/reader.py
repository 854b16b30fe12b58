"""The one reader of shards: it opens a shard as a stream, walks its headers and groups the files into samples.

Every function below reads one shard forward from a single stream, so it makes one request to a store::

    read_items     from a byte offset to the end; the caller decides what a fault means
    read_samples   the same, strict: every fault is a ShardError
    read_shard     a whole shard that has no index
    read_ranges    chosen samples of an indexed shard, each compared with its index
    read_starts    samples at known byte offsets, without an index

``skip_damaged`` is the policy for damage: off, a fault is raised; on, it costs the samples that it hit, which are
returned as :class:`LostSample`. What is not damage (a missing file, an index of another shard) always raises.
"""

import functools
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from typing import NamedTuple

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.sample import Drop
from odb_stream.shards.index import ShardIndex, checksum, index_of, stale
from odb_stream.shards.ranges import Ranges, numbers_in
from odb_stream.shards.tar.faults import Fault, OnFault
from odb_stream.shards.tar.grouping import Grouping, Item, LostSample, Member, TarSample, lose_split_samples, member_of
from odb_stream.shards.tar.headers import ByteCursor, Entry
from odb_stream.shards.tar.walk import walk
from odb_stream.storage.options import DEFAULT, Storage

EMPTY = Fault("unreadable_shard", 0, "the shard holds no sample", "leave it out of the list")
"""The fault of a shard without samples."""

Items = Generator[Item, None, None]

logger = logging.getLogger(__name__)


class SampleStart(NamedTuple):
    """Where a sample of a shard starts: its first byte, and its number."""

    offset: int
    number: int


# ---- Policies: what a fault means ----


def raising(address: str) -> OnFault:
    """Turns every fault of a shard into a ShardError."""
    name = storage.log_name(address)

    def refuse(fault: Fault) -> Drop:
        raise ShardError(fault.text(name))

    return refuse


def dropping(address: str) -> OnFault:
    """Turns every fault of a shard into the drop of the samples it costs, and logs a fault that costs nothing."""
    name = storage.log_name(address)

    def drop(fault: Fault) -> Drop:
        if fault.complete:
            _warn_of_harmless_fault(fault.text(name))
        return fault.drop(name)

    return drop


@functools.cache  # once for each cause, not for each pass
def _warn_of_harmless_fault(fault: str) -> None:
    logger.warning("%s; all its samples are there", fault)


# ---- What all ways of reading share ----


@contextmanager
def _opened(address: str, offset: int, options: Storage) -> Iterator[ByteCursor]:
    with storage.open_stream(address, offset, options) as stream:
        yield ByteCursor(storage.log_name(address), stream, offset)


def grouped(cursor: ByteCursor, number: int, on_fault: OnFault, *, to_end: bool = True) -> Items:
    """The samples from the cursor on, numbered from ``number``; see :func:`odb_stream.shards.tar.walk.walk`."""
    return Grouping(cursor, number, on_fault).items(walk(cursor, to_end=to_end))


# ---- Without an index ----


def read_items(
    address: str, on_fault: OnFault, *, offset: int = 0, number: int = 0, options: Storage = DEFAULT
) -> Items:
    """Read a shard's samples in file order, from the one numbered ``number`` at byte ``offset`` to the end.

    Every fault goes to ``on_fault``. Where that returns a drop, the samples that the fault cost are returned as lost,
    in their places. Folders, links and hidden files are left out.
    """
    with _opened(address, offset, options) as cursor:
        yield from grouped(cursor, number, on_fault)


def read_samples(
    address: str, *, offset: int = 0, number: int = 0, options: Storage = DEFAULT
) -> Generator[TarSample, None, None]:
    """The same, strict.

    Raises ShardError, with address, member and byte offset, for everything that would lose samples or members: a file
    that is not a tar, a cut, a corrupt header, missing end blocks, data after the end, a key that comes back after
    another one (among those read), and a member that is repeated, has no key or extension, or is a pickle.
    """
    for item in read_items(address, raising(address), offset=offset, number=number, options=options):
        if isinstance(item, TarSample):
            yield item


def read_shard(
    address: str, *, skip_damaged: bool, offset: int = 0, number: int = 0, options: Storage = DEFAULT
) -> Items:
    """Read a shard that has no index, from sample ``number`` at byte ``offset`` on; it must hold a sample.

    With ``skip_damaged`` reading always begins at the first byte: the numbers of samples behind damage depend on
    everything before them, and must be a function of the shard's bytes alone. Split samples are lost then; see
    :func:`odb_stream.shards.tar.grouping.lose_split_samples`.
    """
    on_fault = dropping(address) if skip_damaged else raising(address)
    if skip_damaged:
        offset = number = 0
    empty = True
    with closing(read_items(address, on_fault, offset=offset, number=number, options=options)) as items:
        for item in lose_split_samples(items) if skip_damaged else items:
            empty = False
            yield item
    # A reading that begins after the last sample finds none, which is correct.
    if empty and not number:
        yield LostSample(TarSample("", {}, 0, 0, 0), on_fault(EMPTY))


def read_starts(address: str, starts: Sequence[SampleStart], options: Storage = DEFAULT) -> Items:
    """The samples at these starts, in ascending order; the bytes between them may be damaged.

    Raises ShardError where no sample starts, or where one is not whole.
    """
    with _opened(address, starts[0].offset, options) as cursor:
        limits = [*(start.offset for start in starts[1:]), None]
        for start, limit in zip(starts, limits, strict=True):
            # The limit keeps the header of the next wanted sample in the stream, which cannot go back to it.
            cursor.enter(start.offset, limit)
            # Whether the shard ends properly is of no interest here, so only the header after a sample is read.
            with closing(grouped(cursor, start.number, raising(address), to_end=False)) as items:
                sample = next(items, None)
            if not isinstance(sample, TarSample) or sample.offset != start.offset:
                what = f"no sample starts here (sample {start.number})"
                fault = Fault("damaged_tar", start.offset, what, "the shard was changed since")
                raise ShardError(fault.text(cursor.name))
            yield sample


def build_index(address: str, options: Storage = DEFAULT) -> ShardIndex:
    """Read a whole shard and index it. Raises ShardError where the shard is damaged."""
    return index_of(read_samples(address, options=options), storage.size(address, options))


# ---- With an index ----


def read_ranges(
    address: str, index: ShardIndex, ranges: Ranges, *, skip_damaged: bool, options: Storage = DEFAULT
) -> Items:
    """The samples of these ranges of an indexed shard, each exactly as the index has it, or lost.

    The bytes between two ranges may be damaged. Raises ShardError where the index belongs to another shard, and
    without ``skip_damaged`` for any sample that differs from its index.
    """
    if not ranges:
        return
    first = ranges[0][0]
    if skip_damaged and index.present_bytes is not None and index.offsets[first] >= index.present_bytes:
        # The shard was cut before the first of them: no request, since a store refuses an offset beyond the end.
        for number in numbers_in(ranges):
            yield _behind_the_end(storage.log_name(address), index, number)
        return
    with _opened(address, index.offsets[first], options) as cursor:
        for start, stop in ranges:
            if skip_damaged:
                # One by one: the index says where each starts, so damage to one cannot cost its neighbours.
                for number in range(start, stop):
                    yield _whole_or_lost(address, cursor, index, number)
            else:
                yield from _verified(address, cursor, index, start, stop)


def _enter(address: str, cursor: ByteCursor, index: ShardIndex, start: int, stop: int) -> None:
    """Move the cursor to these samples, and let it read no further than to the end of the last one."""
    offset, limit = index.offsets[start], None if stop == index.samples else index.offsets[stop]
    if offset < cursor.at or (limit is not None and limit <= offset):
        raise stale(address, f"its byte offsets are not in order at sample {start}")
    cursor.enter(offset, limit)


def _verified(address: str, cursor: ByteCursor, index: ShardIndex, start: int, stop: int) -> Items:
    """The samples of one range; anything that is wrong with them is raised."""
    _enter(address, cursor, index, start, stop)
    following = start
    for item in grouped(cursor, start, raising(address)):
        if isinstance(item, TarSample):
            index.verify(address, item)
            if checksum(item) != index.checksums[item.index]:
                way_out = "copy the shard again; if it was changed on purpose, run `odb-stream index` again"
                fault = Fault("checksum", item.offset, f"sample {item.index}: {_differs(item.key)}", way_out)
                raise ShardError(fault.text(cursor.name))
            following = item.index + 1
            yield item
    if following < stop:
        raise stale(address, f"the index has {index.samples} samples, the shard ends after {following}")


def _whole_or_lost(address: str, cursor: ByteCursor, index: ShardIndex, number: int) -> Item:
    """The sample in the bytes from its offset to the next one's."""
    key, offset = index.keys[number], index.offsets[number]
    _enter(address, cursor, index, number, number + 1)
    events = walk(cursor)
    first = next(events, None)
    if cursor.at <= offset:
        return _behind_the_end(cursor.name, index, number)
    _require_indexed_key(address, index, number, first)
    items = Grouping(cursor, number, dropping(address)).items(chain([first] if first else [], events))
    found = next(items, None)
    if number + 1 == index.samples and isinstance(next(items, None), TarSample):
        raise stale(address, f"the shard holds more than the {index.samples} samples of its index")
    sample = found.found if isinstance(found, LostSample) else found
    if sample is not None and (sample.key, sample.offset, checksum(sample)) == (key, offset, index.checksums[number]):
        # A fault beside its members (bad padding, say) cost nothing: every byte that was indexed is there.
        return sample
    if isinstance(found, LostSample):
        drop = found.drop
    elif sample is None:
        drop = Fault("damaged_tar", offset, f"the members of key {key!r} are gone").drop(cursor.name)
    else:
        drop = Fault("checksum", offset, _differs(key)).drop(cursor.name)
    return LostSample(TarSample(key, {}, number, offset, offset), drop)


def _behind_the_end(name: str, index: ShardIndex, number: int) -> LostSample:
    """The loss of a sample that starts after the last byte of a cut shard."""
    key, offset = index.keys[number], index.offsets[number]
    drop = Fault("damaged_tar", offset, f"the shard ends before key {key!r}").drop(name)
    return LostSample(TarSample(key, {}, number, offset, offset), drop)


def _require_indexed_key(address: str, index: ShardIndex, number: int, first: Entry | Fault | None) -> None:
    """Raise where a sound header starts another key here than the one in the index.

    That is another shard, not damage: to drop its samples one by one would lose a whole shard without an error.
    """
    # No checksum covers the name in an extended header, so such a name may itself be damaged.
    if not isinstance(first, Entry) or first.extended:
        return
    member = member_of(first)
    if isinstance(member, Member) and (member.key, first.offset) == (index.keys[number], index.offsets[number]):
        return
    if first.offset == index.offsets[number]:
        raise stale(
            address,
            f"by the index, sample {number}, of key {index.keys[number]!r}, starts at byte offset {first.offset}; the "
            f"shard has {first.name!r} there",
        )


def _differs(key: str) -> str:
    return f"the bytes of key {key!r} are not those that were indexed (CRC-32)"
