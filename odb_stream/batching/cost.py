"""What a sample and a group cost under a budget, in integers, and the exact counts of a group that ranks exchange."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from odb_stream.config import Budget, Layout, Settings


class Size(NamedTuple):
    """What batching knows of a sample: its ``length`` in tokens after every stage and its vision ``patches`` decide.

    ``supervised`` tokens, ``bytes`` in memory and the number of ``images`` are carried along to be counted.
    """

    length: int
    patches: int = 0
    supervised: int = 0
    bytes: int = 0
    images: int = 0


@dataclass(frozen=True)
class Footprint:
    """The cost rule of a run.

    A padded group of n samples costs ``n * c(longest)`` tokens, a packed one ``c(sum)``, where ``c`` rounds up to
    ``multiple``. A group is feasible when its tokens, patches and samples are within the budget; the bound is hard.
    Where a group may be given a dummy image, every group reserves room for it on top of that cost: so a part of a
    feasible group is feasible, and a group may be split after it was planned.
    """

    layout: Layout
    budget: Budget
    multiple: int = 1
    dummy_tokens: int = 0
    dummy_patches: int = 0

    @classmethod
    def of(cls, settings: Settings, *, dummy_tokens: int = 0, dummy_patches: int = 0) -> "Footprint":
        """The cost rule of a loader with these settings."""
        multiple = settings.pad_to_multiple_of
        return cls(settings.layout, settings.budget, multiple, dummy_tokens, dummy_patches)

    def rounded(self, tokens: int) -> int:
        """``tokens`` rounded up to the multiple."""
        return -(-tokens // self.multiple) * self.multiple

    @property
    def room(self) -> int:
        """The most tokens before rounding that one packed row can hold."""
        return self.budget.tokens // self.multiple * self.multiple - self.dummy_tokens

    @property
    def most_patches(self) -> int | None:
        """The patches that a group may have, None without a bound."""
        return None if self.budget.patches is None else self.budget.patches - self.dummy_patches

    def most_samples(self, longest: int) -> int:
        """How many samples fit into a padded group whose longest has ``longest`` tokens (0 when none does)."""
        count = self.budget.tokens // self.rounded(longest + self.dummy_tokens)
        return count if self.budget.samples is None else min(count, self.budget.samples)

    def tokens(self, lengths: Iterable[int]) -> int:
        """Tokens that a group of samples of these lengths takes, padding included."""
        lengths = list(lengths)
        if self.layout == "padded":
            return len(lengths) * self.rounded(max(lengths))
        return self.rounded(sum(lengths))

    def feasible(self, sizes: Iterable[Size]) -> bool:
        """Whether the samples fit into one group under the budget."""
        sizes = list(sizes)
        most_patches, most_samples = self.most_patches, self.budget.samples
        lengths = [size.length for size in sizes]
        if self.layout == "padded":
            fits = len(sizes) <= self.budget.tokens // self.rounded(max(lengths) + self.dummy_tokens)
        else:
            fits = sum(lengths) <= self.room
        return (
            fits
            and (most_patches is None or sum(size.patches for size in sizes) <= most_patches)
            and (most_samples is None or len(sizes) <= most_samples)
        )

    def oversize(self, size: Size) -> bool:
        """Whether a sample exceeds the budget by itself."""
        return not self.feasible([size])


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
