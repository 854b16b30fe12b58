"""Small sources for the tests of inspections: items of known lengths, and stages that drop, fail or take time."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import odb_stream as odb
from odb_stream.sample import Sample


@dataclass(frozen=True)
class Items:
    """Item i holds ``lengths[i]`` tokens, the first ``masked`` of which carry no loss."""

    lengths: tuple[int, ...]
    masked: int = 1

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.full(self.lengths[index], index + 1, np.int32)
        return {"input_ids": ids, "labels": np.where(np.arange(len(ids)) < self.masked, -100, ids)}


def some_lengths(count: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths with a long tail, from 2 on."""
    return tuple((np.random.default_rng(seed).lognormal(4, 1, count).astype(int) + 2).tolist())


def pipeline(lengths: tuple[int, ...], *stages: Any, shuffle: bool = True, masked: int = 1) -> odb.Pipeline:
    return odb.Pipeline(odb.FromDataset(Items(lengths, masked), shuffle=shuffle), *stages)


def drop_fifth(sample: Sample) -> Sample | odb.Drop:
    return odb.Drop("fifth", f"number {sample.ref.index}") if sample.ref.index % 5 == 4 else sample


def drop_all(sample: Sample) -> odb.Drop:
    return odb.Drop("unwanted", f"number {sample.ref.index}")


def fail_at_seven(sample: Sample) -> Sample:
    if sample.ref.index == 7:
        raise ValueError("seven is too much")
    return sample


class FakeClock:
    """A clock that only stages advance; replaces the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.time = SimpleNamespace(perf_counter=lambda: self.now)


@dataclass
class Work:
    """A stage that takes ``seconds``, and ``first`` more at its first call."""

    clock: FakeClock
    seconds: float
    first: float = 0.0

    def __call__(self, sample: Sample) -> Sample:
        self.clock.now += self.seconds + self.first
        self.first = 0.0
        return sample
