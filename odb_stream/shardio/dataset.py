"""Any map-style dataset of dicts as a source: the reading deals indices, the workers fetch the items."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError, StageError, StateError
from odb_stream.sample import START, Position, Record, SampleRef
from odb_stream.seeds import DATASET_ORDER, permutation
from odb_stream.shardio.source import Opener, Segment

_CHUNK = 4096


@dataclass(frozen=True)
class FromDataset:
    """A map-style dataset (``len(dataset)`` and ``dataset[index]``) whose items are dicts.

    Items are fetched in the workers, so the dataset must be picklable when there are any. With ``shuffle`` the order
    is drawn anew each epoch. Each rank takes every R-th index of the order; with ``sharded=True`` the dataset given on
    a rank is that rank's own part and the rank takes all of it.

    Raises ConfigError for an iterable dataset, a mapping, and anything without a length.
    """

    dataset: Any
    shuffle: bool = field(default=True, kw_only=True)
    sharded: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _length(self.dataset)

    def open(self) -> "FromDataset":
        """The same: there is nothing to list."""
        return self

    @property
    def samples(self) -> int | None:
        """Items in the dataset; None where each rank has its own part."""
        return None if self.sharded else _length(self.dataset)

    def reading(self, world: World, *, seed: int, epoch: int, source: int = 0) -> "DatasetReading":
        """Deal the indices for one pass of one rank."""
        length = _length(self.dataset)
        order = permutation(length, DATASET_ORDER, seed, epoch) if self.shuffle else np.arange(length, dtype=np.intp)
        own = order if self.sharded else order[world.rank :: world.size]
        return DatasetReading(describe(self.dataset), own, length, world.rank, source=source, epoch=epoch)

    def opener(self) -> Opener:
        """Fetches ``dataset[index]``."""
        return DatasetOpener(self.dataset)


@dataclass(frozen=True)
class DatasetReading:
    """One rank's pass over a dataset of ``length`` items: the indices ``order``, shape (samples,).

    ``source`` is the number that references carry in a mix.
    """

    name: str
    order: npt.NDArray[np.intp]
    length: int
    rank: int
    source: int = field(default=0, kw_only=True)
    epoch: int = field(default=0, kw_only=True)

    @property
    def samples(self) -> int:
        """How many records this rank reads."""
        return len(self.order)

    @property
    def plan(self) -> tuple[Segment, ...]:
        """Empty: there are no shards."""
        return ()

    def records(self, start: Position = START) -> Iterator[Record]:
        """The records after position ``start``; its ``index`` counts the records read before."""
        ordinal = start.index
        if start.segment or ordinal > self.samples:
            raise StateError(
                f"position {tuple(start)} lies beyond the {self.samples} samples of this rank in {self.name}"
            )
        for first in range(ordinal, self.samples, _CHUNK):
            for index in self.order[first : first + _CHUNK].tolist():
                ordinal += 1
                ref = SampleRef(self.source, self.rank, index, -1)
                yield Record(ref, str(index), self.name, position=Position(0, ordinal, -1, 0), epoch=self.epoch)

    def fetch(self, ref: SampleRef) -> Record:
        """The record of a reference again. Raises ShardError where the dataset has no such index."""
        if not 0 <= ref.index < self.length:
            raise ShardError(
                f"{self.name} has {self.length} items, so none of index {ref.index}; give the same dataset"
            )
        return Record(ref, str(ref.index), self.name, epoch=self.epoch)


@dataclass(frozen=True)
class DatasetOpener:
    """Fetches the item of a record from the dataset; picklable if the dataset is."""

    dataset: Any

    def __call__(self, record: Record) -> Mapping[str, Any]:
        """The item as fields. Raises StageError, with type, index and cause, if it fails or is no mapping."""
        index = record.ref.index
        try:
            item = self.dataset[index]
        except Exception as error:  # the user's code may raise anything; it is reported with its place
            cause = f"{type(error).__name__}: {error}"
            raise StageError(f"{describe(self.dataset)}: item {index} cannot be fetched ({cause}); fix it") from error
        if not isinstance(item, Mapping):
            raise StageError(
                f"{describe(self.dataset)}: item {index} is no dict but {type(item).__name__}; "
                "return a dict with `messages`, `text` or `input_ids`"
            )
        return item


def describe(dataset: object) -> str:
    """The dataset in words, for messages."""
    return f"dataset {type(dataset).__name__}"


def _length(dataset: Any) -> int:
    """The number of items; raises ConfigError unless the dataset is map-style."""
    kind = type(dataset)
    # By name: the classes of torch and of Hugging Face datasets both inherit from one called so.
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
