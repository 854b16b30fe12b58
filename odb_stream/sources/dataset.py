"""Any map-style dataset of dicts as a source: the reading deals out indices, the workers fetch the items."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError, StageError, StateError
from odb_stream.sample import START, Position, ReadingPosition, Record, Remaining, SampleRef, in_one_source
from odb_stream.seeds import DATASET_ORDER, of_source, permutation
from odb_stream.sources.remaining import items_in, rows_of_items, rows_of_source
from odb_stream.sources.source import Opener, Segment

_CHUNK = 4096
"""Indices that become Python integers at once: an array of all of them would be a list as long as the dataset."""


@dataclass(frozen=True)
class FromDataset:
    """A map-style dataset (``len(dataset)`` and ``dataset[index]``) whose items are dicts.

    Workers fetch the items, so with workers the dataset must be picklable. With ``shuffle`` each epoch has another
    random order. Of R ranks, each takes every R-th index of that order; with ``sharded=True`` the dataset on a rank is
    that rank's own part, and the rank takes all of it.

    Raises ConfigError for an iterable dataset, a mapping, and anything without a length.
    """

    dataset: Any
    shuffle: bool = field(default=True, kw_only=True)
    sharded: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _length(self.dataset)

    def open(self) -> "FromDataset":
        """This source: a dataset needs no opening."""
        return self

    @property
    def samples(self) -> int | None:
        """Items in the dataset; None if each rank has its own part."""
        return None if self.sharded else _length(self.dataset)

    @property
    def fingerprint(self) -> str:
        """Type, length, and how it is read; the items are not compared."""
        way = ("" if self.shuffle else ", not shuffled") + (", sharded" if self.sharded else "")
        return f"{describe(self.dataset)} of {_length(self.dataset)} items{way}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the one source in reports."""
        return ("dataset",)

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> "DatasetReading":
        """One rank's share of the indices in one pass."""
        length = _length(self.dataset)
        order = np.arange(length, dtype=np.intp)
        if self.shuffle:
            order = permutation(length, of_source(DATASET_ORDER, source), seed, epoch)
        own = order if self.sharded else order[world.rank :: world.size]
        epochs = np.broadcast_to(np.intp(epoch), own.shape)
        return DatasetReading(
            describe(self.dataset), own, epochs, length, world.rank, source=source, sharded=self.sharded
        )

    def share_of(
        self, rows: Sequence[Remaining], world: World, *, seed: int, source: int = 0, turn: int = 0
    ) -> "DatasetReading":
        """One rank's share of what remains; see :class:`odb_stream.sources.source.OpenSource`.

        Pass follows pass, each in a new random order, and all are dealt in turn.
        """
        name, length = describe(self.dataset), _length(self.dataset)
        if self.sharded:
            raise each_its_own(name)
        rows = rows_of_source(rows, source)
        for row in rows:
            if row.shard or row.stop > length:
                raise StateError(
                    f"{row} is not among the {length} items of {name}: give FromDataset the dataset that the state was "
                    "saved with"
                )
        items, epochs = [items_in(())], [items_in(())]
        for epoch, group in groupby(rows, key=lambda row: row.epoch):
            left = items_in(tuple(group))
            if self.shuffle:
                # Their number is part of the seed: otherwise a whole pass would come in its first order again.
                left = left[permutation(len(left), of_source(DATASET_ORDER, source), seed, epoch, len(left))]
            items.append(left)
            epochs.append(np.full_like(left, epoch))
        own = slice((world.rank - turn) % world.size, None, world.size)
        order, passes = np.concatenate(items), np.concatenate(epochs)
        return DatasetReading(name, order[own], passes[own], length, world.rank, source=source)

    def opener(self) -> Opener:
        """Fetches ``dataset[index]``."""
        return DatasetOpener(self.dataset)


@dataclass(frozen=True)
class DatasetReading:
    """One rank's pass over a dataset of ``length`` items.

    ``order`` and ``epochs`` are the index and the pass of each record, of shape (samples,). ``source`` is the number
    that references carry in a mix; a ``sharded`` dataset is this rank's own part.
    """

    name: str
    order: npt.NDArray[np.intp]
    epochs: npt.NDArray[np.intp]
    length: int
    rank: int
    source: int = field(default=0, kw_only=True)
    sharded: bool = field(default=False, kw_only=True)

    @property
    def samples(self) -> int:
        """How many records this rank reads."""
        return len(self.order)

    @property
    def plan(self) -> tuple[Segment, ...]:
        """Empty: there are no shards."""
        return ()

    def records(self, start: ReadingPosition = START) -> Iterator[Record]:
        """The records after position ``start``, whose ``index`` counts the records before it."""
        ordinal = self._read_before(start)
        for first in range(ordinal, self.samples, _CHUNK):
            part = slice(first, first + _CHUNK)
            for index, epoch in zip(self.order[part].tolist(), self.epochs[part].tolist(), strict=True):
                ordinal += 1
                ref = SampleRef(self.source, self.rank, index, -1)
                yield Record(ref, str(index), self.name, position=Position(0, ordinal, -1, 0), epoch=epoch)

    def remaining(self, position: ReadingPosition) -> list[Remaining]:
        """What follows a position, as rows of shard 0. Raises StateError if each rank has its own data."""
        if self.sharded:
            raise each_its_own(self.name)
        first = self._read_before(position)
        items, epochs = self.order[first:], self.epochs[first:]
        rows: list[Remaining] = []
        for epoch in np.unique(epochs).tolist():
            rows += rows_of_items(self.source, epoch, items[epochs == epoch])
        return rows

    def fetch_all(self, held: Sequence[tuple[SampleRef, int]]) -> list[Record]:
        """The records of references again, each in its pass. Raises ShardError for an index that does not exist."""
        for ref, _ in held:
            if not 0 <= ref.index < self.length:
                raise ShardError(
                    f"{self.name} has {self.length} items, so none of index {ref.index}; give FromDataset "
                    "the dataset that the state was saved with"
                )
        return [Record(ref, str(ref.index), self.name, epoch=epoch) for ref, epoch in held]

    def _read_before(self, position: ReadingPosition) -> int:
        place = in_one_source(position, self.name)
        if place.segment or place.index > self.samples:
            raise StateError(
                f"position {tuple(place)} lies beyond the {self.samples} samples of this rank in {self.name}: give "
                "FromDataset the dataset that the state was saved with"
            )
        return place.index


@dataclass(frozen=True)
class DatasetOpener:
    """Fetches the item of a record from the dataset; picklable if the dataset is."""

    dataset: Any

    def __call__(self, record: Record) -> Mapping[str, Any]:
        """The item as fields. Raises StageError, with type, index and cause, if it fails or is not a mapping."""
        index = record.ref.index
        try:
            item = self.dataset[index]
        except Exception as error:  # the user's code may raise anything; it is reported with its place
            cause = f"{type(error).__name__}: {error}"
            raise StageError(f"{describe(self.dataset)}: item {index} cannot be fetched ({cause}); fix it") from error
        if not isinstance(item, Mapping):
            raise StageError(
                f"{describe(self.dataset)}: item {index} is not a dict but {type(item).__name__}; "
                "return a dict with `messages`, `text` or `input_ids`"
            )
        return item


def each_its_own(name: str) -> StateError:
    """The error for data that no other rank can read."""
    return StateError(
        f"{name} is sharded: each rank has its own data, so another number of ranks cannot resume with it; resume with "
        "as many ranks as before, or give every rank the whole dataset with sharded=False"
    )


def describe(dataset: object) -> str:
    """The dataset in words, for messages."""
    return f"dataset {type(dataset).__name__}"


def _length(dataset: Any) -> int:
    """The number of items; raises ConfigError unless the dataset is map-style."""
    kind = type(dataset)
    # By name: importing torch here would cost every worker seconds, and Hugging Face has a class of this name too.
    iterable = any(base.__name__ == "IterableDataset" for base in kind.__mro__)
    if iterable or isinstance(dataset, Mapping | str | bytes) or not hasattr(kind, "__getitem__"):
        raise ConfigError(
            f"FromDataset needs a map-style dataset with dataset[0], dataset[1], ..., not {kind.__name__}; "
            "for a stream, write shards with `odb-stream write` and read them with Shards"
        )
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"FromDataset needs a dataset with a length, but len() of {kind.__name__} fails: {error}"
        ) from error
