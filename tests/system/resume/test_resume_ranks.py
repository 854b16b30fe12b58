"""Real ranks resume from the states of any step: steady rounds, drain, last round, after moves, with a quota.

Loading again and again leaves nothing behind: threads, processes, descriptors and memory are back to the start.
"""

import gc
import json

import pytest
from loader_data import Ready
from ranks_support import run_ranks, values
from ranks_training import Case
from resume_support import check_every_cut
from waiting import background_threads, children, descriptors, eventually

import odb_stream as odb

SMALL = {"budget": odb.Budget(256), "window": 12, "lookahead": 4}

CASES = {
    "two ranks": {
        "uneven": Case((67, 127), settings=SMALL),
        "a rank with little, packed": Case((90, 3), settings={**SMALL, "layout": "packed", "grad_accum": 2}),
        "a rank with nothing, nothing moves": Case((40, 0), settings={**SMALL, "rebalance": False}),
    },
    "three ranks": {
        "uneven": Case((60, 10, 30), settings={**SMALL, "grad_accum": 3}),
        "a rank with nothing": Case((0, 67, 5), settings=SMALL),
    },
    "a quota": {"quota": Case((7, 60), 3, settings={**SMALL, "closure": "quota", "quota": 50, "grad_accum": 2})},
}


def resume_everywhere(cases: dict[str, Case]) -> int:
    """Check each case at every step of its first epoch; the steps of the shortest."""
    steps = []
    for name, case in cases.items():
        print(name, flush=True)  # the log of a rank that fails says where
        seen = check_every_cut(case.loader, epochs=max(case.epochs, 2), quota="quota" in case.settings)
        steps.append(len(seen[0]))
    return min(steps)


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_every_rank_makes_the_steps_that_would_have_come(cases: dict[str, Case]) -> None:
    size = len(next(iter(cases.values())).shares)
    assert min(values(run_ranks(resume_everywhere, size, cases))) > 3


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


def loader(workers: int) -> odb.Loader:
    pipeline = odb.Pipeline(odb.FromDataset(Ready(120)))
    return odb.Loader(pipeline, budget=odb.Budget(tokens=128), window=32, lookahead=4, workers=workers)


@pytest.mark.parametrize(("workers", "times"), [(0, 50), pytest.param(1, 6, marks=pytest.mark.slow)])
def test_nothing_grows_over_many_loads(workers: int, times: int) -> None:
    others = len(children())
    with loader(workers) as stream:
        iterator = iter(stream)
        for _ in range(4):
            odb.pop_step(next(iterator))
        state = json.loads(json.dumps(stream.state_dict()))
        before = 0, 0
        for _ in range(times):
            stream.load_state_dict(state)
            iterator = iter(stream)
            odb.pop_step(next(iterator))
            if before == (0, 0):
                before = descriptors(), len(children())
        del iterator
        gc.collect()
        assert descriptors() <= before[0]
        assert len(children()) <= before[1]
    left = descriptors()
    for _ in range(times // 2):
        with loader(workers) as stream:  # a new one for each load gives everything back as well
            stream.load_state_dict(state)
            odb.pop_step(next(iter(stream)))
    # With workers, multiprocessing keeps one process of its own, its resource tracker, until this one ends.
    eventually(lambda: not background_threads() and len(children()) <= others + (workers > 0))
    assert descriptors() <= left
