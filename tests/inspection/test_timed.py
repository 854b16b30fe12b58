"""The timed twin of Prepare: the same outcomes, and each stage's own time, without what a first call loads."""

import pickle

import numpy as np
import pytest
from inspection_data import FakeClock, Work, drop_fifth, fail_at_seven, pipeline, some_lengths

import odb_stream as odb
from odb_stream.inspection import timed
from odb_stream.inspection.timed import OPENER, WHOLE, Spent, TimedChunk, TimedPrepare
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import PreparedSample
from odb_stream.workers.pool import WorkerPool


def records(given: odb.Pipeline, count: int) -> list:
    return list(given.source.open().reading(odb.World(), seed=0, epoch=0).records())[:count]


def plain(outcome) -> object:
    """An outcome in a form that compares."""
    if isinstance(outcome, PreparedSample):
        return outcome.ref, outcome.input_ids.tolist(), outcome.labels.tolist(), outcome.supervised
    return repr(outcome)


@pytest.mark.parametrize("stages", [(), (drop_fifth,), (drop_fifth, fail_at_seven)], ids=["none", "drops", "fails"])
def test_the_outcomes_are_those_of_prepare(stages):
    given = pipeline(some_lengths(20), *stages, shuffle=False)
    some = records(given, 20)
    twin, real = TimedPrepare.of(given, 3).chunk(some), prepare_for(given, 3).chunk(some)
    assert isinstance(twin, TimedChunk)
    assert list(map(plain, twin.outcomes(some))) == list(map(plain, real.outcomes(some)))


def test_each_stage_is_given_its_own_time(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(timed, "time", clock.time)
    given = pipeline((5,) * 10, Work(clock, 2.0), drop_fifth, Work(clock, 0.5), shuffle=False)
    chunk = TimedPrepare.of(given, 0).chunk(records(given, 10))
    assert chunk.spent == {
        (0, WHOLE): Spent(10, 24.0),
        (0, OPENER): Spent(10, 0.0),
        (0, 1): Spent(10, 20.0),
        (0, 2): Spent(10, 0.0),
        (0, 3): Spent(8, 4.0),
    }


def test_what_is_loaded_at_the_first_call_is_not_counted(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(timed, "time", clock.time)
    given = pipeline((5,) * 6, Work(clock, 1.0, first=100.0))
    prepare = TimedPrepare.of(given, 0)
    some = records(given, 6)
    chunks = [prepare.chunk(some[:3]), prepare.chunk(some[3:])]
    assert [chunk.spent[0, 1] for chunk in chunks] == [Spent(3, 3.0), Spent(3, 3.0)]
    assert [len(chunk.lengths) for chunk in chunks] == [3, 3]


def test_times_travel_with_their_chunk_and_clocks_do_not():
    given = pipeline(some_lengths(8), drop_fifth)
    prepare = TimedPrepare.of(given, 0)
    some = records(given, 8)
    chunk = prepare.chunk(some)
    copy = pickle.loads(pickle.dumps(chunk))
    assert isinstance(copy, TimedChunk)
    assert copy.spent == chunk.spent
    assert np.array_equal(copy.input_ids, chunk.input_ids)
    assert prepare.clock.warm
    assert not pickle.loads(pickle.dumps(prepare)).clock.warm


def test_times_come_back_from_workers():
    given = pipeline(some_lengths(30), drop_fifth, shuffle=False)
    some = records(given, 30)
    with WorkerPool(TimedPrepare.of(given, 0), 1) as pool:
        chunks = [pool.wait(future) for future in [pool.submit(some[:10]), pool.submit(some[10:])]]
    assert [chunk.spent[0, 1].calls for chunk in chunks] == [10, 20]
    assert all(spent.seconds >= 0 for chunk in chunks for spent in chunk.spent.values())
