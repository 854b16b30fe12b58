"""The first batch is early: at default settings it takes a bounded number of records, however many there are."""

import pytest
from loader_data import Ready

import odb_stream as odb
from odb_stream.checkpoint.fit import unseal
from odb_stream.checkpoint.reshard import place_of
from odb_stream.sources.shard_reading import SHUFFLE_BLOCK

MOST_RECORDS = 1024


class Counted(Ready):
    """Samples of one length that count how many of them were fetched."""

    def __init__(self, size: int, length: int) -> None:
        super().__init__(size)
        self.length = length
        self.fetched = 0

    def __getitem__(self, index: int) -> dict:
        self.fetched += 1
        return {"input_ids": [1] * self.length}


@pytest.mark.parametrize("size", [3_000, 100_000])
@pytest.mark.parametrize("length", [5, 60, 2_000])
def test_the_first_batch_needs_few_records(size: int, length: int) -> None:
    """Fails with: a lookahead that begins with 8 groups, or a window that begins with 1,024 samples."""
    with odb.Loader(odb.Pipeline(odb.FromDataset(Counted(size, length))), budget=odb.Budget(tokens=16_384)) as loader:
        odb.pop_step(next(iter(loader)))
        planned = place_of(unseal(loader.state_dict()).state.place).round.window.received
    under_way = 64  # a chunk is being prepared while the round is planned
    assert -(-(planned + under_way) // SHUFFLE_BLOCK) * SHUFFLE_BLOCK <= MOST_RECORDS
