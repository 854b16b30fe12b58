"""Samples out of a damaged shard: the whole ones, and a loss for each that cannot be read whole."""

import functools
import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.sample import Drop
from odb_stream.shards.index import ShardIndex, checksum, stale
from odb_stream.shards.tar import read_items
from odb_stream.shards.tar.byte_cursor import Tape
from odb_stream.shards.tar.faults import Fault, OnFault
from odb_stream.shards.tar.grouping import Grouping, Item, LostSample, TarSample
from odb_stream.shards.tar.headers import Entry
from odb_stream.shards.tar.names import Member, member_of
from odb_stream.shards.tar.walk import walk
from odb_stream.storage.options import DEFAULT, Storage

HELD_BACK = 256
"""Samples that wait before they are handed on, so that further members of their keys, which should not be, are seen."""

logger = logging.getLogger(__name__)


def dropping(address: str) -> OnFault:
    """Turns every fault of a shard into the drop of what it costs, and logs one that costs nothing."""
    name = storage.log_name(address)

    def bear(fault: Fault) -> Drop:
        if fault.complete:
            _tell(fault.text(name))
        return fault.drop(name)

    return bear


@functools.cache  # once for each cause, not for each pass
def _tell(fault: str) -> None:
    logger.warning("%s; all its samples are there", fault)


def read_salvaged(address: str, options: Storage = DEFAULT) -> Generator[Item, None, None]:
    """The samples of a shard without an index, whole and lost, from its start.

    They, and their numbers, are a function of the shard's bytes alone. A key that comes back with members which it
    already had loses its second sample; one that comes back with others loses both, for they are two halves. Raises
    ShardError where more than ``HELD_BACK`` samples lie between those halves: the first was handed on.
    """
    empty = True
    with closing(read_items(address, dropping(address), options=options)) as items:
        for item in _without_halves(items):
            empty = False
            yield item
    if empty:
        nothing = Fault("unreadable_shard", 0, "the shard holds no sample", "leave it out of the list")
        yield LostSample(TarSample("", {}, 0, 0, 0), nothing.drop(storage.log_name(address)))


def _without_halves(items: Iterable[Item]) -> Iterator[Item]:
    held: dict[int, Item] = {}
    whole: dict[str, tuple[int, frozenset[str]]] = {}
    shared: dict[frozenset[str], frozenset[str]] = {}
    for item in items:
        if isinstance(item, TarSample):
            extensions = frozenset(item.members)
            whole[item.key] = item.index, shared.setdefault(extensions, extensions)
        elif item.drop.reason == "repeated_key" and item.found.key in whole:
            first, extensions = whole.pop(item.found.key)
            if extensions.isdisjoint(item.found.members):
                if first not in held:
                    raise ShardError(
                        f"{item.drop.detail}. Its first members were handed on as sample {first}: no setting can drop "
                        "what is spread over a shard like this"
                    )
                held[first] = _lost(held[first], item.drop)
        held[item.index] = item
        if len(held) > HELD_BACK:
            yield held.pop(next(iter(held)))
    yield from held.values()


def _lost(item: Item, drop: Drop) -> LostSample:
    return LostSample(item, drop) if isinstance(item, TarSample) else item


def read_indexed(
    address: str, index: ShardIndex, numbers: Iterable[int], options: Storage = DEFAULT
) -> Generator[Item, None, None]:
    """The samples of these ascending numbers, each whole, as its index has it, or lost. Asks for the shard once.

    What is between two samples does not matter. Raises ShardError where the shard is sound but another one than was
    indexed.
    """
    ahead = iter(numbers)
    first = next(ahead, None)
    if first is None:
        return
    on_fault = dropping(address)
    if index.present_bytes is not None and index.offsets[first] >= index.present_bytes:
        for number in chain([first], ahead):
            yield _missing(storage.log_name(address), index, number)
        return
    with storage.open_stream(address, index.offsets[first], options) as stream:
        tape = Tape(storage.log_name(address), stream, index.offsets[first])
        for number in chain([first], ahead):
            yield _read_span(address, tape, index, number, on_fault)


def _read_span(address: str, tape: Tape, index: ShardIndex, number: int, on_fault: OnFault) -> Item:
    """The sample in the bytes from its offset to the next one's."""
    key, offset = index.keys[number], index.offsets[number]
    is_last = number + 1 == index.samples
    if offset < tape.at or (not is_last and index.offsets[number + 1] <= offset):
        raise stale(address, f"its byte offsets are not in order at sample {number}")
    tape.limit = None
    tape.advance(offset)
    tape.start, tape.limit = offset, None if is_last else index.offsets[number + 1]
    events = walk(tape)
    first = next(events, None)
    if tape.at <= offset:
        return _missing(tape.name, index, number)
    _check_first(address, index, number, first)
    items = Grouping(tape, number, on_fault).items(chain([first] if first else [], events))
    found = next(items, None)
    if is_last and isinstance(next(items, None), TarSample):
        raise stale(address, f"the shard holds more than the {index.samples} samples of its index")
    sample = found.found if isinstance(found, LostSample) else found
    known = (key, offset, index.checksums[number])
    if sample is not None and (sample.key, sample.offset, checksum(sample)) == known:
        return sample
    if isinstance(found, LostSample):
        drop = found.drop
    elif sample is None:
        drop = Fault("damaged_tar", offset, f"the members of key {key!r} are gone").drop(tape.name)
    else:
        drop = Fault("checksum", offset, differs(key)).drop(tape.name)
    return LostSample(TarSample(key, {}, number, offset, offset), drop)


def _missing(name: str, index: ShardIndex, number: int) -> LostSample:
    """A sample that lies behind the end of the shard."""
    key, offset = index.keys[number], index.offsets[number]
    drop = Fault("damaged_tar", offset, f"the shard ends before key {key!r}").drop(name)
    return LostSample(TarSample(key, {}, number, offset, offset), drop)


def _check_first(address: str, index: ShardIndex, number: int, first: Entry | Fault | None) -> None:
    """Raise where a sound header starts another key than the index has here."""
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


def differs(key: str) -> str:
    """What is wrong where a sample's bytes are not those that were indexed."""
    return f"the bytes of key {key!r} are not those that were indexed (CRC-32)"
