"""Shards as a source: the declaration, and the shards once they are opened."""

import functools
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from odb_stream import storage
from odb_stream.config import World, require_choice
from odb_stream.errors import ShardError, StateError
from odb_stream.sample import Remaining
from odb_stream.shards.index import Indexes, read_counts
from odb_stream.shards.members import open_members, open_or_drop
from odb_stream.shards.reader import EMPTY
from odb_stream.sources.assignment import assign, assign_remaining, shard_order
from odb_stream.sources.remaining import rows_of_source
from odb_stream.sources.shard_reading import ShardReading
from odb_stream.sources.source import Opener, Segment
from odb_stream.storage.options import DEFAULT, Storage

OnDamage = Literal["error", "drop"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shards:
    """Tar shards in the WebDataset layout.

    Args:
        urls: an address, a brace list (``train-{000..511}.tar``), a glob, or a list of these; the shards are numbered
            in sorted order.
        shuffle: shuffle the order of the shards, and of the records within blocks of ``SHUFFLE_BLOCK``, differently in
            each epoch; otherwise the order is that of names and files.
        on_damage: ``"error"`` ends the run at a damaged shard, with address, member and byte offset; ``"drop"`` keeps
            every whole sample and drops the others, each counted as damaged under its reason.
        storage: how to reach object stores and HTTP servers; None takes everything from the environment.

    With an index beside every shard (``odb-stream index``) the samples are split equally over ranks, their number is
    known, and every sample is compared with its checksum.

    Raises:
        ConfigError: an address or a setting that is not valid. Missing shards are found when the source is opened.
    """

    urls: storage.Urls
    shuffle: bool = field(default=True, kw_only=True)
    on_damage: OnDamage = field(default="error", kw_only=True)
    storage: Storage | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        storage.patterns(self.urls)
        require_choice("on_damage of Shards", self.on_damage, get_args(OnDamage))

    def open(self) -> "OpenShards":
        """List the shards and count their samples. Raises ShardError for a missing or empty shard or a stale index."""
        options = self.storage or DEFAULT
        addresses = storage.expand(self.urls, options)
        found = tuple(read_counts(addresses, options, may_be_cut=self.on_damage == "drop"))
        if 0 in found:
            raise ShardError(EMPTY.text(storage.log_name(addresses[found.index(0)])))
        return OpenShards(addresses, found, self.shuffle, self.on_damage == "drop", options)

    def reading(self, world: World, *, seed: int, epoch: int) -> ShardReading:
        """Open the shards for one pass of one rank; see :meth:`open`."""
        return self.open().reading(world, seed=seed, epoch=epoch)

    def opener(self) -> Opener:
        """Parses json and txt members; see :func:`odb_stream.shards.members.open_members`."""
        return open_or_drop if self.on_damage == "drop" else open_members


@dataclass(frozen=True)
class OpenShards:
    """The shards of a source, opened: addresses in order, and the samples in each by its index, if it has one."""

    addresses: tuple[str, ...]
    found: tuple[int | None, ...]
    shuffle: bool
    skip_damaged: bool
    options: Storage

    @property
    def counts(self) -> tuple[int, ...] | None:
        """Samples in each shard; None without an index beside every shard."""
        known = tuple(count for count in self.found if count is not None)
        return known if len(known) == len(self.found) else None

    @property
    def samples(self) -> int | None:
        """Samples in all shards; None without an index beside every shard."""
        return None if self.counts is None else sum(self.counts)

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names without their folders, and of the number of samples in each indexed one.

        Folders are left out so that a run can resume after its shards have moved.
        """
        shards = zip(self.addresses, self.found, strict=True)
        text = repr([(storage.log_name(address).rpartition("/")[2], count) for address, count in shards])
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return f"{len(self.addresses)} shards, {digest}{'' if self.shuffle else ', not shuffled'}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the one source in reports."""
        return ("shards",)

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> ShardReading:
        """One rank's pass over its part."""
        counts = self.counts
        order = self._order(seed, epoch, source)
        if counts is None:
            indexed = sum(count is not None for count in self.found)
            _warn_of_missing(storage.log_name(self.addresses[0]), len(self.addresses), indexed, world.size)
        indexes = self._indexes()
        plan = tuple(
            replace(part, offset=_offset(part, indexes), source=source, epoch=epoch)
            for part in assign(self.addresses, world, order=order, counts=counts)
        )
        return self._read(plan, seed, indexes)

    def share_of(
        self, rows: Sequence[Remaining], world: World, *, seed: int, source: int = 0, turn: int = 0
    ) -> ShardReading:
        """One rank's share of what remains; see :class:`odb_stream.sources.source.OpenSource`."""
        indexes = self._indexes()
        indexes.require(self.addresses)
        rows = rows_of_source(rows, source)
        for row in rows:
            if row.shard >= len(self.addresses) or row.stop > (self.found[row.shard] or 0):
                raise StateError(
                    f"{row} is not among these {len(self.addresses)} shards with {self.samples} samples: give the "
                    "same shards"
                )
        plan = assign_remaining(
            self.addresses, rows, world, order_of=lambda epoch: self._order(seed, epoch, source), turn=turn
        )
        return self._read(plan, seed, indexes)

    def _order(self, seed: int, epoch: int, source: int) -> list[int]:
        return shard_order(len(self.addresses), seed=seed, epoch=epoch, shuffle=self.shuffle, source=source)

    def _indexes(self) -> Indexes:
        pairs = zip(self.addresses, self.found, strict=True)
        indexed = (address for address, found in pairs if found is not None)
        return Indexes(indexed, self.options, may_be_cut=self.skip_damaged)

    def _read(self, plan: tuple[Segment, ...], seed: int, indexes: Indexes) -> ShardReading:
        return ShardReading(
            self.addresses,
            plan,
            indexes=indexes,
            shuffle=self.shuffle,
            skip_damaged=self.skip_damaged,
            seed=seed,
            options=self.options,
        )


def _offset(segment: Segment, indexes: Indexes) -> int:
    """The byte at which the segment's first sample starts, from the shard's index."""
    index = indexes.of(segment.address) if segment.stop is not None and segment.start else None
    return 0 if index is None else index.offsets[segment.start]


@functools.cache  # once for each cause, not for each epoch
def _warn_of_missing(first: str, shards: int, indexed: int, ranks: int) -> None:
    if shards < ranks:
        logger.warning(
            "%s: %d shards for %d ranks, and only %d with an index: every rank reads all shards and keeps every %d-th "
            "sample, which is %d times the traffic; run `odb-stream index` on them so that each rank reads its own "
            "part only",
            first,
            shards,
            ranks,
            indexed,
            ranks,
            ranks,
        )
    elif indexed:
        logger.warning(
            "%s: only %d of %d shards have an index, so whole shards are dealt to ranks; "
            "run `odb-stream index` on the others for an equal split",
            first,
            indexed,
            shards,
        )
