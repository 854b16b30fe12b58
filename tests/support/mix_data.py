"""Small sources for the tests of this folder: numbered items, chats in shards, and stages that leave a mark."""

from fractions import Fraction
from pathlib import Path

import numpy as np
from make_tars import write_counts

import odb_stream as odb
from odb_stream.sample import Sample


class Tokens:
    """``size`` items; item i holds ``first + i``, 2 to 9 times."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size = size
        self.first = first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"input_ids": np.full(2 + index * 5 % 8, self.first + index, np.int32)}


def numbered(size: int, *, shuffle: bool = True) -> odb.Pipeline:
    """A pipeline over a dataset of that many items, without stages."""
    return odb.Pipeline(odb.FromDataset(Tokens(size), shuffle=shuffle))


def sharded(folder: Path, counts: list[int], *, indexed: bool) -> odb.Pipeline:
    """A pipeline over shards of these many chats, written into a folder."""
    folder.mkdir(exist_ok=True)
    return odb.Pipeline(odb.Shards(write_counts(folder, counts, indexed=indexed)))


def mark_negative(sample: Sample) -> dict[str, object]:
    """Leaves no loss on the last token: the mark of one source."""
    labels = np.array(sample["input_ids"])
    labels[-1] = -100
    return {**sample, "labels": labels}


def add_thousand(sample: Sample) -> dict[str, object]:
    """Adds 1000 to every token: the mark of the stages for all sources."""
    return {**sample, "input_ids": sample["input_ids"] + 1000}


def double(sample: Sample) -> dict[str, object]:
    """Doubles every token: with :func:`add_thousand` the order shows."""
    return {**sample, "input_ids": sample["input_ids"] * 2}


def drawn(sample: Sample) -> dict[str, object]:
    """Replaces the tokens by drawn ones."""
    from odb_stream.seeds import generator

    return {**sample, "input_ids": generator(sample, "drawn").integers(0, 1 << 30, len(sample["input_ids"]))}


def drop_odd(sample: Sample) -> Sample | odb.Drop:
    """Leaves out every second item."""
    return odb.Drop("odd") if sample.ref.index % 2 else sample


def bound(sources: int) -> Fraction:
    """How many turns a source of a mix may be away from its due, at most, among that many sources."""
    return Fraction(2 * sources - 3, 2 * sources - 2) if sources > 1 else Fraction(0)

