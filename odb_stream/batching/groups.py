"""A group: samples that one rank emits in one step, and the exact counts that ranks exchange about it."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from odb_stream.batching.cost import Footprint, Size

T = TypeVar("T")
Integers = npt.NDArray[np.int64]


class Counts(NamedTuple):
    """The numbers of a group that every rank learns: integers only, all zero for an idle rank."""

    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    padded_tokens: int = 0
    patches: int = 0
    bytes: int = 0
    images: int = 0


SAMPLES, TOKENS, SUPERVISED, PADDED, PATCHES, BYTES, IMAGES = range(len(Counts._fields))
"""Columns of a table of counts."""


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """Samples of one step on one rank, oldest first, with their sizes in the same order."""

    samples: tuple[T, ...]
    sizes: tuple[Size, ...]
    counts: Counts

    @classmethod
    def of(cls, samples: tuple[T, ...], sizes: tuple[Size, ...], footprint: Footprint) -> "Group[T]":
        """The group of these samples under a footprint."""
        return cls(samples, sizes, count(sizes, footprint))

    def part(self, places: tuple[int, ...], footprint: Footprint) -> "Group[T]":
        """The group of the samples at these places."""
        samples = tuple(self.samples[place] for place in places)
        return Group.of(samples, tuple(self.sizes[place] for place in places), footprint)

    def smallest(self) -> int:
        """The place of the sample with the fewest tokens."""
        return min(range(len(self.sizes)), key=lambda place: self.sizes[place].length)


def count(sizes: tuple[Size, ...], footprint: Footprint) -> Counts:
    """The counts of a group of samples of these sizes."""
    lengths, patches, supervised, bytes_, images = zip(*sizes, strict=True)
    return Counts(
        samples=len(sizes),
        tokens=sum(lengths),
        supervised=sum(supervised),
        padded_tokens=footprint.tokens(lengths),
        patches=sum(patches),
        bytes=sum(bytes_),
        images=sum(images),
    )


def table(rows: list[Counts] | list[Size], height: int, width: int) -> Integers:
    """Rows of integers as an array of shape (height, width), filled with zeros below."""
    filled = np.zeros((height, width), dtype=np.int64)
    if rows:
        filled[: len(rows)] = rows
    return filled
