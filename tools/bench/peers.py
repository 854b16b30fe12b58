"""Batch schedules of other systems' own samplers, for the figures that ``simulate`` gives of our policies."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

BUCKETS = 10
"""lhotse's default."""


@dataclass
class Sized:
    """A sample as lhotse's token constraint sees it."""

    num_tokens: int


def lhotse_missing() -> str | None:
    """Why lhotse cannot be compared with, if so."""
    return None if find_spec("lhotse") else 'lhotse is not installed: pip install "odb-stream[bench]"'


def lhotse_schedule(lengths: list[int], ranks: int, tokens: int, buffer: int) -> list[list[list[int]]]:
    """Steps of lhotse's dynamic bucketing: its own sampler, run once for each rank, as a job of that size runs it.

    Every rank's sampler reads all lengths, forms the batches of all ranks and keeps its own. ``buffer`` is how many
    samples each holds; the other settings are its defaults (10 buckets from the first 10,000 lengths).
    """
    from lhotse.dataset.sampling.base import TokenConstraint
    from lhotse.dataset.sampling.dynamic_bucketing import DynamicBucketingSampler

    def batches(rank: int) -> list[list[int]]:
        sampler: Any = DynamicBucketingSampler(
            Samples(lengths), constraint=TokenConstraint(max_tokens=tokens), num_buckets=BUCKETS, buffer_size=buffer,
            shuffle=True, drop_last=False, world_size=ranks, rank=rank, seed=0,
        )  # fmt: skip
        return [[sample.num_tokens for sample in batch] for batch in sampler]

    return [list(step) for step in zip(*map(batches, range(ranks)), strict=True)]


class Samples:
    """Lengths as a source that can be read again and again."""

    is_lazy = True

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Any:
        return (Sized(length) for length in self.lengths)
