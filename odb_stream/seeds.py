"""All randomness: pure functions of (seed, epoch, ...), the same on every machine and for any worker count."""

import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from odb_stream.sample import Sample

# One number for each purpose, so that no two uses of the same (seed, epoch) share a stream.
SHARD_ORDER = 1
BLOCK_ORDER = 2
STEP_ORDER = 3
SAMPLE_DRAWS = 4
DATASET_ORDER = 5
LENGTH_DRAWS = 6

MOST_PURPOSES = 256
"""Purposes are numbered below this, so that a source's number can be counted in above it."""


def of_source(purpose: int, source: int) -> int:
    """A purpose's number for one source of a mix: no two sources share a stream, and the first has the plain number.

    Without it, the same shards listed twice in a mix would be read in step.
    """
    return purpose + source * MOST_PURPOSES


def permutation(size: int, *entropy: int) -> npt.NDArray[np.intp]:
    """A permutation of ``range(size)`` drawn from the given non-negative integers.

    Built by ranking raw PCG64 output, whose stream NumPy guarantees across versions (``Generator.permutation`` is
    not guaranteed).
    """
    keys = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(size)
    return np.argsort(keys, kind="stable")


def generator(sample: "Sample", purpose: str) -> np.random.Generator:
    """The generator of one sample for one purpose (usually the stage's name).

    A function of (seed, epoch, source, shard, index, purpose): the same sample draws the same numbers in any worker,
    after a resume and on any rank, and others in the next epoch.
    """
    ref = sample.ref
    words = (SAMPLE_DRAWS, sample.seed, sample.epoch, ref.source, ref.shard, ref.index, zlib.crc32(purpose.encode()))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
