"""Real ranks resume from the states of any step: steady rounds, drain, last round, after moves, with a quota."""

import pytest
from ranks_support import run_ranks, values
from ranks_training import Case
from resume_support import check_every_cut

import odb_stream as odb

SMALL = {"budget": odb.Budget(256), "window": 12, "lookahead": 4}

CASES = {
    2: {
        "uneven": Case((67, 127), settings=SMALL),
        "a rank with little, packed": Case((90, 3), settings={**SMALL, "layout": "packed", "grad_accum": 2}),
        "a rank with nothing, nothing moves": Case((40, 0), settings={**SMALL, "rebalance": False}),
    },
    3: {
        "uneven": Case((60, 10, 30), settings={**SMALL, "grad_accum": 3}),
        "a rank with nothing": Case((0, 67, 5), settings=SMALL),
    },
}

QUOTA = Case((7, 60), 3, settings={**SMALL, "closure": "quota", "quota": 50, "grad_accum": 2})


def resume_everywhere(cases: dict[str, Case], **how: bool) -> int:
    """Check each case at every step of its first epoch; the steps of the shortest."""
    steps = []
    for name, case in cases.items():
        print(name, flush=True)  # the log of a rank that fails says where
        steps.append(len(check_every_cut(case.loader, epochs=max(case.epochs, 2), **how)[0]))
    return min(steps)


def resume_with_a_quota() -> int:
    return resume_everywhere({"quota": QUOTA}, quota=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", CASES)
def test_every_rank_makes_the_steps_that_would_have_come(size: int) -> None:
    assert min(values(run_ranks(resume_everywhere, size, CASES[size]))) > 3


@pytest.mark.slow
def test_with_a_quota_too() -> None:
    assert min(values(run_ranks(resume_with_a_quota, 2))) > 3


def load_what_differs() -> str:
    """Rank 0 resumes after its second step, the other after its third."""
    case = Case((40, 40), settings=SMALL)
    with case.loader() as stream:
        states = []
        for batch in stream:
            odb.pop_step(batch)
            states.append(stream.state_dict())
    with case.loader() as stream:
        stream.load_state_dict(states[1 + states[0]["rank"]])
        with pytest.raises(odb.StateError) as error:
            next(iter(stream))
        return str(error.value)


def test_ranks_at_different_steps_are_refused_on_every_rank() -> None:
    for rank, message in enumerate(values(run_ranks(load_what_differs, 2))):
        assert message.startswith(f"rank {rank} ")
        assert f" after {2 + rank} steps of epoch 0 " in message
        assert f"rank {1 - rank} after {3 - rank} steps of epoch 0" in message
