"""Loading again and again leaves nothing behind: threads, processes, descriptors and memory are back to the start."""

import gc
import json

import pytest
from loader_data import Ready
from waiting import background_threads, children, descriptors, eventually

import odb_stream as odb


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
    # With workers, multiprocessing keeps one process of its own, its resource tracker, until this one ends.
    eventually(lambda: not background_threads() and len(children()) <= others + (workers > 0))


def test_a_new_loader_for_each_load_gives_everything_back() -> None:
    with loader(0) as stream:
        odb.pop_step(next(iter(stream)))
        state = stream.state_dict()
    before = descriptors()
    for _ in range(20):
        with loader(0) as stream:
            stream.load_state_dict(state)
            odb.pop_step(next(iter(stream)))
    eventually(lambda: not background_threads())
    assert descriptors() <= before
