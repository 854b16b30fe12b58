"""Shuffle blocks, gaps, chunks and held-back samples are small here, so that small data have several of each."""

from collections.abc import Iterator

import pytest

from odb_stream.shards import refetch
from odb_stream.shards.tar import grouping
from odb_stream.sources import dataset, shard_reading


@pytest.fixture(autouse=True, scope="module")
def _small_scale() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_CHUNK", 4)
        patch.setattr(shard_reading, "SHUFFLE_BLOCK", 4)
        patch.setattr(refetch, "MOST_SKIPPED", 2048)
        patch.setattr(grouping, "HELD_BACK", 3)
        yield
