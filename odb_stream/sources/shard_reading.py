"""One rank's pass over shards: records in shuffled blocks, from any position on, with what damage cost among them."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile, islice
from typing import TypeVar

from odb_stream import storage
from odb_stream.errors import ShardError, StateError
from odb_stream.sample import START, Position, ReadingPosition, Record, Remaining, SampleRef, in_one_source
from odb_stream.seeds import BLOCK_ORDER, of_source, permutation
from odb_stream.shards.index import Indexes, ShardIndex
from odb_stream.shards.ranges import Ranges, count, cut, joined, numbers_in, ranges_of, since
from odb_stream.shards.reader import Items, SampleStart, read_ranges, read_shard
from odb_stream.shards.refetch import coalesced_ranges, refetch
from odb_stream.shards.tar.grouping import Item, LostSample, TarSample
from odb_stream.sources.remaining import rows_of_ranges
from odb_stream.sources.source import Segment
from odb_stream.storage.options import DEFAULT, Storage

SHUFFLE_BLOCK = 256
"""How many neighbouring records of a shard are read and held, to be emitted in a drawn order."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class ShardReading:
    """One rank's pass over shards in one epoch, or its share of what remains of one or several.

    With ``skip_damaged``, a sample that a damaged shard lost is a record with ``damage`` set; otherwise damage is a
    ShardError.
    """

    addresses: tuple[str, ...]
    plan: tuple[Segment, ...]
    indexes: Indexes = field(kw_only=True, compare=False, repr=False)
    shuffle: bool = field(kw_only=True)
    skip_damaged: bool = field(default=False, kw_only=True)
    seed: int = field(kw_only=True)
    options: Storage = field(default=DEFAULT, kw_only=True)

    @cached_property
    def samples(self) -> int | None:
        """How many records this rank reads; None without an index beside every shard."""
        if any(part.stop is None for part in self.plan):
            return None
        return sum(count(part.ranges(0)) for part in self.plan)

    def records(self, start: ReadingPosition = START) -> Iterator[Record]:
        """The records after position ``start``. Reads at most one block again, and nothing before it.

        Only a reading that skips damage in a shard without an index reads that shard from its beginning.
        """
        position = self._checked(start)
        for number in range(position.segment, len(self.plan)):
            yield from self._segment_records(number, position if number == position.segment else START)

    def remaining(self, position: ReadingPosition) -> list[Remaining]:
        """What follows a position, as rows. Raises StateError without an index beside every shard."""
        self.indexes.require(self.addresses)
        checked = self._checked(position)
        rows: list[Remaining] = []
        for number, segment in enumerate(self.plan[checked.segment :], start=checked.segment):
            ranges = segment.ranges(0)
            if number == checked.segment and checked.place:
                ranges = self._after(segment, since(ranges, checked.index), checked)
            rows += rows_of_ranges(segment.source, segment.epoch, segment.shard, ranges)
        return rows

    def fetch_all(self, held: Sequence[tuple[SampleRef, int]]) -> list[Record]:
        """Read records again, each by its reference and its pass; see :meth:`odb_stream.sources.source.Reading`."""
        wanted: dict[str, dict[int, int]] = {}
        for ref, _ in sorted(held):
            if not 0 <= ref.shard < len(self.addresses):
                known = len(self.addresses)
                raise ShardError(f"there is no shard {ref.shard}, only {known} shards; give the same shards")
            wanted.setdefault(self.addresses[ref.shard], {})[ref.offset] = ref.index
        found = refetch(
            {address: [SampleStart(*pair) for pair in sorted(starts.items())] for address, starts in wanted.items()},
            index_of=self.indexes.of,
            skip_damaged=self.skip_damaged,
            options=self.options,
        )
        records = []
        for ref, epoch in held:
            address = self.addresses[ref.shard]
            sample = found[address, ref.offset]
            records.append(Record(ref, sample.key, storage.log_name(address), sample.members, epoch=epoch))
        return records

    def _checked(self, start: ReadingPosition) -> Position:
        position = in_one_source(start, "shards")
        if position.segment and position.segment >= len(self.plan):
            raise StateError(
                f"position {tuple(position)} lies beyond the {len(self.plan)} segments of this rank's plan: "
                "give Shards the same shards with the same indexes"
            )
        return position

    def _after(self, segment: Segment, ranges: Ranges, position: Position) -> Ranges:
        """What remains of a segment whose current block begins the ranges, after ``position.place`` records of it.

        Blocks are shuffled, so the records that were read are scattered over the block.
        """
        block = list(numbers_in(cut(ranges, 0, self._block_size)))
        order = self._order(segment, position.index, len(block), position.place)
        unread = ranges_of(sorted(block[choice] for choice in order))
        return joined((*unread, *cut(ranges, len(block), count(ranges))))

    def _segment_records(self, number: int, start: Position) -> Iterator[Record]:
        segment = self.plan[number]
        skip = start.place
        # Every position given out counts at least one record of its block; without one, the segment begins.
        first, offset = (start.index, start.offset) if skip else (segment.start, segment.offset)
        if not skip and segment.step > 1:
            # Such a segment has no byte offset for its first sample, so its shard is read from the beginning.
            first = 0
        with closing(self._items(segment, first, offset)) as items:
            own = (item for item in items if (item.index - segment.start) % segment.step == 0)
            wanted = dropwhile(lambda item: item.index < max(first, segment.start), own)
            for block in _batched(wanted, self._block_size):
                yield from self._block_records(number, block, skip)
                skip = 0

    def _block_records(self, number: int, block: list[Item], skip: int) -> Iterator[Record]:
        segment = self.plan[number]
        name = storage.log_name(segment.address)
        first = _found(block[0])
        for place, choice in enumerate(self._order(segment, first.index, len(block), skip), start=skip + 1):
            item, sample = block[choice], _found(block[choice])
            ref = SampleRef(segment.source, segment.shard, sample.index, sample.offset)
            position = Position(number, first.index, first.offset, place)
            if isinstance(item, LostSample):
                yield Record(ref, sample.key, name, {}, position, segment.epoch, item.drop)
            else:
                yield Record(ref, sample.key, name, sample.members, position, segment.epoch)

    @property
    def _block_size(self) -> int:
        return SHUFFLE_BLOCK if self.shuffle else 1

    def _order(self, segment: Segment, first: int, length: int, skip: int) -> list[int]:
        """The order of a block, without the ``skip`` records of it that were read."""
        if skip > length:
            name = storage.log_name(segment.address)
            raise StateError(f"{name}: position {skip} in a block of {length} records: the shard or "
                "its index has changed since the state was saved; restore it, or start an epoch without the state")
        if not self.shuffle:
            return list(range(skip, length))
        purpose = of_source(BLOCK_ORDER, segment.source)
        order: list[int] = permutation(length, purpose, self.seed, segment.epoch, segment.shard, first).tolist()
        return order[skip:]

    def _items(self, segment: Segment, first: int, offset: int) -> Items:
        """The shard's samples from number ``first``, at byte ``offset``, or from one before it."""
        index = self.indexes.of(segment.address)
        if index is not None:
            return self._indexed_items(segment, first, index)
        return read_shard(
            segment.address, skip_damaged=self.skip_damaged, offset=offset, number=first, options=self.options
        )

    def _indexed_items(self, segment: Segment, first: int, index: ShardIndex) -> Items:
        ranges = since(segment.ranges(index.samples), first)
        if segment.step > 1:
            ranges = ranges_of(range(first + (segment.start - first) % segment.step, index.samples, segment.step))
        for near in coalesced_ranges(ranges, index):
            items = read_ranges(segment.address, index, near, skip_damaged=self.skip_damaged, options=self.options)
            with closing(items):
                yield from items


def _found(item: Item) -> TarSample:
    return item.found if isinstance(item, LostSample) else item


def _batched(items: Iterator[Value], size: int) -> Iterator[list[Value]]:
    while batch := list(islice(items, size)):
        yield batch
