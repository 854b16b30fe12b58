"""A loop on several ranks that never reads the loss scale is warned once, by rank, after the first epoch."""

import copy
import pickle
from dataclasses import replace

import pytest
from ranks_support import run_ranks, values
from ranks_training import Case

import odb_stream as odb


def two_epochs(reads: bool) -> None:
    """Two epochs of a loop that reads the scale, or not."""
    with Case((30, 20), settings={"window": 8, "lookahead": 4}).loader() as stream:
        for _ in range(2):
            for batch in stream:
                info = odb.pop_step(batch)
                assert info.global_samples
                if reads:
                    assert info.loss_scale >= 0
    assert replace(info, step=7).loss_scale == info.loss_scale
    for plain in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
        assert type(plain) is odb.StepInfo
        assert (plain.step, plain.loss_scale) == (info.step, info.loss_scale)


@pytest.mark.parametrize("reads", [False, True])
def test_a_scale_that_is_never_read_is_warned_of_once(reads: bool) -> None:
    outcomes = run_ranks(two_epochs, 2, reads)
    values(outcomes)
    for rank, outcome in enumerate(outcomes):
        warnings = [line for line in outcome.output.splitlines() if "loss_scale was not read" in line]
        assert len(warnings) == (not reads)
        assert reads or warnings[0].startswith(f"rank {rank}: ")
