"""Shards as a source: one rank's records in an epoch, shuffled in blocks, from any position on."""

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from odb_stream.config import World
from odb_stream.errors import ShardError, StateError
from odb_stream.sample import START, Position, Record, SampleRef
from odb_stream.seeds import BLOCK_ORDER, permutation
from odb_stream.shardio import storage
from odb_stream.shardio.assign import assign, shard_order
from odb_stream.shardio.index import index_address, read_count, read_index, stale
from odb_stream.shardio.members import open_members
from odb_stream.shardio.options import DEFAULT, Storage
from odb_stream.shardio.source import Opener, Segment
from odb_stream.shardio.tar import TarSample, read_sample, read_samples

SHUFFLE_BLOCK = 256
"""How many neighbouring records of a shard are read, and held, to be emitted in a drawn order."""

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shards:
    """Tar shards in the WebDataset layout.

    ``urls`` is an address, a brace list (``train-{000..511}.tar``), a glob, or a list of these; the shards are numbered
    in sorted order. With ``shuffle`` the order of the shards, and of the records within blocks of ``SHUFFLE_BLOCK``,
    is drawn anew each epoch; otherwise it is the order of names and files. With an index beside every shard
    (``odb-stream index``) the samples are split equally over ranks, and their number is known.

    Raises ConfigError for an address that cannot be read; missing shards are found when a reading is opened.
    """

    urls: storage.Urls
    shuffle: bool = field(default=True, kw_only=True)
    storage: Storage | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        storage.patterns(self.urls)

    def open(self) -> "OpenShards":
        """List the shards and count their samples. Raises ShardError for a missing or empty shard or a stale index."""
        options = self.storage or DEFAULT
        addresses = storage.expand(self.urls, options)
        return OpenShards(addresses, _counts(addresses, options), self.shuffle, options)

    def reading(self, world: World, *, seed: int, epoch: int) -> "ShardReading":
        """Open the shards for one pass of one rank; see :meth:`open`."""
        return self.open().reading(world, seed=seed, epoch=epoch)

    def opener(self) -> Opener:
        """Parses json and txt members; see :func:`odb_stream.shardio.members.open_members`."""
        return open_members


@dataclass(frozen=True)
class OpenShards:
    """The shards of a source as they were found: addresses in order, and samples in each where all have an index."""

    addresses: tuple[str, ...]
    counts: tuple[int, ...] | None
    shuffle: bool
    options: Storage

    @property
    def samples(self) -> int | None:
        """Samples in all shards; None without an index beside every shard."""
        return None if self.counts is None else sum(self.counts)

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> "ShardReading":
        """One rank's pass over its part."""
        order = shard_order(len(self.addresses), seed=seed, epoch=epoch, shuffle=self.shuffle)
        segments = assign(self.addresses, world, order=order, counts=self.counts)
        if self.counts is None:
            _warn_of_missing(self.addresses, self.options, world.size)
        plan = tuple(_located(part, self.options) for part in segments)
        samples = None if self.counts is None else sum((part.stop or 0) - part.start for part in plan)
        return ShardReading(
            self.addresses, plan, samples, shuffle=self.shuffle, seed=seed, epoch=epoch, source=source,
            options=self.options,
        )


@dataclass(frozen=True)
class ShardReading:
    """One rank's pass over shards in one epoch; ``samples`` is None without an index beside every shard.

    ``source`` is the number that references carry in a mix.
    """

    addresses: tuple[str, ...]
    plan: tuple[Segment, ...]
    samples: int | None
    shuffle: bool = field(kw_only=True)
    seed: int = field(kw_only=True)
    epoch: int = field(kw_only=True)
    source: int = field(default=0, kw_only=True)
    options: Storage = field(default=DEFAULT, kw_only=True)

    def records(self, start: Position = START) -> Iterator[Record]:
        """The records after position ``start``. Reads at most one block again, and nothing that lies before it."""
        if start.segment and start.segment >= len(self.plan):
            raise StateError(f"position {tuple(start)} lies beyond the {len(self.plan)} segments of this rank's plan")
        for number in range(start.segment, len(self.plan)):
            yield from self._segment_records(number, start if number == start.segment else START)

    def fetch(self, ref: SampleRef) -> Record:
        """Read one record again. Raises ShardError where there is no such sample."""
        if not 0 <= ref.shard < len(self.addresses):
            raise ShardError(f"there is no shard {ref.shard}, only {len(self.addresses)} shards; give the same shards")
        address = self.addresses[ref.shard]
        sample = read_sample(address, offset=ref.offset, index=ref.index, options=self.options)
        return Record(ref, sample.key, storage.log_name(address), sample.members, epoch=self.epoch)

    def _segment_records(self, number: int, start: Position) -> Iterator[Record]:
        segment = self.plan[number]
        name = storage.log_name(segment.address)
        skip = start.place
        # Every position given out counts at least one record of its block; without one, the segment begins.
        index, offset = (start.index, start.offset) if skip else (segment.start, segment.offset)
        if not skip and segment.step > 1:
            index = 0
        for block in _batched(_own_samples(segment, index, offset, self.options), SHUFFLE_BLOCK if self.shuffle else 1):
            first = block[0]
            if skip > len(block):
                raise StateError(f"{name}: a position {skip} records into a block of {len(block)}: the shard changed")
            order = self._block_order(segment.shard, first.index, len(block))
            for place, choice in enumerate(order[skip:], start=skip + 1):
                sample = block[choice]
                ref = SampleRef(self.source, segment.shard, sample.index, sample.offset)
                position = Position(number, first.index, first.offset, place)
                yield Record(ref, sample.key, name, sample.members, position, self.epoch)
            skip = 0

    def _block_order(self, shard: int, first: int, length: int) -> list[int]:
        if not self.shuffle:
            return list(range(length))
        order: list[int] = permutation(length, BLOCK_ORDER, self.seed, self.epoch, shard, first).tolist()
        return order


def _own_samples(segment: Segment, index: int, offset: int, options: Storage) -> Iterator[TarSample]:
    """The segment's samples from the given one on; each is checked against the shard's index, if there is one."""
    known = read_index(segment.address, options)
    following = index
    with closing(read_samples(segment.address, offset=offset, index=index, options=options)) as samples:
        for sample in samples:
            following = sample.index + 1
            if known is not None:
                known.verify(segment.address, sample)
            if sample.index >= segment.start and (sample.index - segment.start) % segment.step == 0:
                yield sample
            if following == segment.stop and known is not None and following < known.samples:
                return
    if following == 0:
        raise _empty(segment.address)
    if known is not None and following != known.samples:
        raise stale(segment.address, f"the index has {known.samples} samples, the shard ends after {following}")


def _empty(address: str) -> ShardError:
    return ShardError(f"{storage.log_name(address)}: the shard holds no sample; leave it out of the list")


def _batched(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(islice(items, size)):
        yield batch


def _located(segment: Segment, options: Storage) -> Segment:
    """The segment with the byte offset of its first sample, from the shard's index."""
    if segment.stop is None or segment.start == 0:
        return segment
    index = read_index(segment.address, options)
    if index is None:
        raise stale(segment.address, "the index went away while it was read")
    return replace(segment, offset=index.offsets[segment.start])


def _counts(addresses: Sequence[str], options: Storage) -> tuple[int, ...] | None:
    """Samples in each shard by the indexes; None unless every shard has one."""
    counts = [read_count(address, options) for address in addresses]
    if 0 in counts:
        raise _empty(addresses[counts.index(0)])
    known = tuple(count for count in counts if count is not None)
    return known if len(known) == len(addresses) else None


@functools.cache  # once for each cause, not for each epoch
def _warn_of_missing(addresses: tuple[str, ...], options: Storage, ranks: int) -> None:
    indexed = sum(storage.exists(index_address(address), options) for address in addresses)
    first = storage.log_name(addresses[0])
    if len(addresses) < ranks:
        logger.warning(
            "%s: %d shards for %d ranks, not all with an index: every rank reads all shards and prepares its share; "
            "run `odb-stream index` on them so that each rank reads its own part only",
            first,
            len(addresses),
            ranks,
        )
    elif indexed:
        logger.warning(
            "%s: only %d of %d shards have an index, so whole shards are dealt to ranks; "
            "run `odb-stream index` on the others for an equal split",
            first,
            indexed,
            len(addresses),
        )
