"""One rank's pass over shards: records in shuffled blocks, from any position on, and what a damaged shard lost."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile, islice
from typing import TypeVar

from odb_stream import storage
from odb_stream.errors import ShardError, StateError
from odb_stream.sample import START, Position, ReadingPosition, Record, Remaining, SampleRef, in_one_source
from odb_stream.seeds import BLOCK_ORDER, of_source, permutation
from odb_stream.shards.coalescing import read_spans, spans_together
from odb_stream.shards.index import ShardIndex, checksum, read_index, stale
from odb_stream.shards.ranges import Spans, count, cut, joined, numbers_in, since, spans_of
from odb_stream.shards.refetch import Place, read_again
from odb_stream.shards.salvage import differs, read_indexed, read_salvaged
from odb_stream.shards.tar import read_samples
from odb_stream.shards.tar.faults import Fault
from odb_stream.shards.tar.grouping import Item, LostSample, TarSample
from odb_stream.sources.remaining import of_spans
from odb_stream.sources.source import Segment
from odb_stream.storage.options import DEFAULT, Storage

SHUFFLE_BLOCK = 256
"""How many neighbouring records of a shard are read, and held, to be emitted in a drawn order."""

Value = TypeVar("Value")


class Indexes:
    """The indexes of the shards that had one when they were opened; the last one read is kept, for it may be large."""

    def __init__(self, indexed: Iterable[str], options: Storage, *, may_be_cut: bool) -> None:
        self._indexed = frozenset(indexed)
        self._options = options
        self._may_be_cut = may_be_cut
        self._last: tuple[str, ShardIndex] | None = None

    def of(self, address: str) -> ShardIndex | None:
        """A shard's index, or None. Raises ShardError where it is gone or does not fit the shard."""
        if address not in self._indexed:
            return None
        last = self._last
        if last is None or last[0] != address:
            index = read_index(address, self._options, may_be_cut=self._may_be_cut)
            if index is None:
                raise stale(address, "the index went away while the shards were open")
            last = self._last = (address, index)
        return last[1]

    def require(self, addresses: Iterable[str]) -> None:
        """Raise StateError, where one of the shards has no index, for what cannot be told without."""
        for address in addresses:
            if address not in self._indexed:
                raise StateError(
                    f"{storage.log_name(address)} has no index, so it cannot be told which samples are still to come, "
                    "and no other number of ranks can go on with them: run `odb-stream index` on all shards before a "
                    "run begins; this one goes on with as many ranks as it had"
                )


@dataclass(frozen=True)
class ShardReading:
    """One rank's pass over shards in one epoch, or what is still to come of one or several.

    With ``tolerant``, what a damaged shard lost comes as records with ``damage`` set; otherwise it is a ShardError.
    """

    addresses: tuple[str, ...]
    plan: tuple[Segment, ...]
    indexes: Indexes = field(kw_only=True, compare=False, repr=False)
    shuffle: bool = field(kw_only=True)
    tolerant: bool = field(default=False, kw_only=True)
    seed: int = field(kw_only=True)
    options: Storage = field(default=DEFAULT, kw_only=True)

    @cached_property
    def samples(self) -> int | None:
        """How many records this rank reads; None without an index beside every shard."""
        if any(part.stop is None for part in self.plan):
            return None
        return sum(count(part.spans(0)) for part in self.plan)

    def records(self, start: ReadingPosition = START) -> Iterator[Record]:
        """The records after position ``start``. Reads at most one block again, and nothing that lies before it.

        Only a tolerant reading without an index reads the shard of ``start`` from its beginning.
        """
        place = self._place(start)
        for number in range(place.segment, len(self.plan)):
            yield from self._segment_records(number, place if number == place.segment else START)

    def remaining(self, position: ReadingPosition) -> list[Remaining]:
        """What comes after a position, as rows. Raises StateError without an index beside every shard."""
        self.indexes.require(self.addresses)
        place = self._place(position)
        rows: list[Remaining] = []
        for number, segment in enumerate(self.plan[place.segment :], start=place.segment):
            spans = segment.spans(0)
            if number == place.segment and place.place:
                spans = self._after(segment, since(spans, place.index), place)
            rows += of_spans(segment.source, segment.epoch, segment.shard, spans)
        return rows

    def fetch(self, ref: SampleRef, epoch: int) -> Record:
        """Read one record of pass ``epoch`` again. Raises ShardError where there is no such sample, or it was lost."""
        (record,) = self.fetch_all([(ref, epoch)])
        return record

    def fetch_all(self, held: Sequence[tuple[SampleRef, int]]) -> list[Record]:
        """Read many records again, in the order asked, from one stream where they lie near each other.

        Raises ShardError as above.
        """
        wanted: dict[str, dict[int, int]] = {}
        for ref, _ in sorted(held):
            wanted.setdefault(self._address(ref), {})[ref.offset] = ref.index
        found = read_again(
            {address: [Place(*pair) for pair in sorted(places.items())] for address, places in wanted.items()},
            index_of=self.indexes.of,
            read_indexed=self._read_indexed,
            options=self.options,
        )
        records = []
        for ref, epoch in held:
            address = self.addresses[ref.shard]
            sample = found[address, ref.offset]
            records.append(Record(ref, sample.key, storage.log_name(address), sample.members, epoch=epoch))
        return records

    def _place(self, start: ReadingPosition) -> Position:
        place = in_one_source(start, "shards")
        if place.segment and place.segment >= len(self.plan):
            raise StateError(f"position {tuple(place)} lies beyond the {len(self.plan)} segments of this rank's plan")
        return place

    def _address(self, ref: SampleRef) -> str:
        if not 0 <= ref.shard < len(self.addresses):
            raise ShardError(f"there is no shard {ref.shard}, only {len(self.addresses)} shards; give the same shards")
        return self.addresses[ref.shard]

    def _after(self, segment: Segment, spans: Spans, place: Position) -> Spans:
        """What is left of a segment whose present block begins the spans, after so many records of that block."""
        block = list(numbers_in(cut(spans, 0, self._block_size)))
        order = self._order(segment, place.index, len(block), place.place)
        return joined((*spans_of(sorted(block[choice] for choice in order)), *cut(spans, len(block), count(spans))))

    def _segment_records(self, number: int, start: Position) -> Iterator[Record]:
        segment = self.plan[number]
        skip = start.place
        # Every position given out counts at least one record of its block; without one, the segment begins.
        first, offset = (start.index, start.offset) if skip else (segment.start, segment.offset)
        if not skip and segment.step > 1:
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
            raise StateError(f"{name}: a position {skip} records into a block of {length}: the shard changed")
        if not self.shuffle:
            return list(range(skip, length))
        purpose = of_source(BLOCK_ORDER, segment.source)
        order: list[int] = permutation(length, purpose, self.seed, segment.epoch, segment.shard, first).tolist()
        return order[skip:]

    def _items(self, segment: Segment, first: int, offset: int) -> Generator[Item, None, None]:
        """The shard's samples from number ``first``, at byte ``offset``, or from one before it."""
        index = self.indexes.of(segment.address)
        if index is None:
            if self.tolerant:
                return read_salvaged(segment.address, self.options)
            return _read_strictly(segment.address, first, offset, self.options)
        return self._stretches(segment, first, index)

    def _stretches(self, segment: Segment, first: int, index: ShardIndex) -> Generator[Item, None, None]:
        spans = since(segment.spans(index.samples), first)
        if segment.step > 1:
            spans = spans_of(range(first + (segment.start - first) % segment.step, index.samples, segment.step))
        for stretch in spans_together(spans, index):
            with closing(self._read_indexed(segment.address, stretch, index)) as items:
                yield from items

    def _read_indexed(self, address: str, spans: Spans, index: ShardIndex) -> Generator[Item, None, None]:
        """The samples of a stretch of an indexed shard, each checked against its index."""
        if self.tolerant:
            yield from read_indexed(address, index, numbers_in(spans), self.options)
            return
        for sample in read_spans(address, index, spans, self.options):
            _check(address, index, sample)
            yield sample


def _read_strictly(address: str, first: int, offset: int, options: Storage) -> Generator[TarSample, None, None]:
    """The samples of a shard without an index, from the given one on."""
    sample = None
    with closing(read_samples(address, offset=offset, index=first, options=options)) as samples:
        for sample in samples:
            yield sample
    if sample is None and not first:
        raise empty(address)


def _check(address: str, known: ShardIndex, sample: TarSample) -> None:
    """Raise ShardError unless the sample is the one that was indexed, byte for byte."""
    known.verify(address, sample)
    if checksum(sample) != known.checksums[sample.index]:
        way_out = "copy the shard again; if it was changed on purpose, run `odb-stream index` again"
        fault = Fault("checksum", sample.offset, f"sample {sample.index}: {differs(sample.key)}", way_out)
        raise ShardError(fault.text(storage.log_name(address)))


def empty(address: str) -> ShardError:
    """The error of a shard without samples."""
    return ShardError(f"{storage.log_name(address)}: the shard holds no sample; leave it out of the list")


def _found(item: Item) -> TarSample:
    return item.found if isinstance(item, LostSample) else item


def _batched(items: Iterator[Value], size: int) -> Iterator[list[Value]]:
    while batch := list(islice(items, size)):
        yield batch
