"""Several ranks and a loop that never looks at the loss scale: told once, by name, after the first epoch."""

import logging

import pytest
from ranks_support import run_ranks, values
from ranks_training import Case

import odb_stream as odb


def warnings_of(reads: bool) -> list[str]:
    """What is logged in two epochs by a loop that reads the scale, or not."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("odb_stream.loader.epoch").addHandler(handler)
    with Case((30, 20), settings={"window": 8, "lookahead": 4}).loader() as stream:
        for _ in range(2):
            for batch in stream:
                step = odb.pop_step(batch)
                assert step.global_samples
                if reads:
                    assert step.loss_scale >= 0
    return told


@pytest.mark.parametrize("reads", [False, True])
def test_a_scale_that_is_never_read_is_told_once(reads: bool) -> None:
    for rank, told in enumerate(values(run_ranks(warnings_of, 2, reads))):
        assert len(told) == (not reads)
        assert reads or told[0].startswith(f"rank {rank}: loss_scale was not read in a whole epoch on 2 ranks")
