"""Real ranks go on from the states of any step: steady rounds, drain, last round, after moves, with a quota."""

import json
from typing import Any

import pytest
from ranks_support import run_ranks, values
from ranks_training import Case
from resume_support import comparable, settled

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

QUOTAS = {2: {"quota": Case((7, 60), 3, settings={**SMALL, "closure": "quota", "quota": 50, "grad_accum": 2})}}


def go_on_everywhere(cases: dict[str, Case]) -> dict[str, list[str]]:
    """Run each case uncut, then go on from every step of its first epoch; what differs, in words, by case."""
    return {name: differences(case) for name, case in cases.items()}


def differences(case: Case) -> list[str]:
    epochs = max(case.epochs, 2)
    steps: list[list[Any]] = []
    states: list[list[str]] = []
    with case.loader() as stream:
        for _ in range(epochs):
            states.append([json.dumps(stream.state_dict())])
            steps.append([])
            for batch in stream:
                steps[-1].append(comparable(batch))
                states[-1].append(json.dumps(stream.state_dict()))
        report = settled(stream.report())
    found = [] if len(steps[0]) > 3 else ["there are too few steps to cut"]
    quota = case.settings.get("closure") == "quota"
    for cut in range(len(steps[0]) + (not quota)):
        with case.loader() as stream:
            stream.load_state_dict(json.loads(states[0][cut]))
            rest, after = [], []
            for batch in stream:
                rest.append(comparable(batch))
                after.append(json.dumps(stream.state_dict()))
            if rest != steps[0][cut:]:
                found.append(f"cut {cut}: {len(rest)} steps for {len(steps[0][cut:])}")
            if after != states[0][cut + 1 :]:
                found.append(f"cut {cut}: states differ")
            for number in range(1, epochs):
                if [comparable(batch) for batch in stream] != steps[number]:
                    found.append(f"cut {cut}: epoch {number} differs")
            if not quota and settled(stream.report()) != report:
                found.append(f"cut {cut}: the report differs")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", CASES)
def test_what_follows_is_what_would_have_come_on_every_rank(size: int) -> None:
    for found in values(run_ranks(go_on_everywhere, size, CASES[size])):
        assert found == {name: [] for name in CASES[size]}


@pytest.mark.slow
def test_with_a_quota_too() -> None:
    for found in values(run_ranks(go_on_everywhere, 2, QUOTAS[2])):
        assert found == {"quota": []}


def load_what_differs() -> str:
    """Rank 0 goes on after its second step, the other after its third."""
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
        assert message.startswith(f"rank {rank} goes on after {2 + rank} steps of epoch 0")
        assert f"rank {1 - rank} after {3 - rank} steps of epoch 0" in message
