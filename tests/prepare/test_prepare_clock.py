"""Prepare with a clock: the same results, and each stage's own time, without what a first call loads."""

import pickle

import pytest
from inspection_data import FakeClock, Work, drop_fifth, fail_at_seven, pipeline, some_lengths
from worker_stages import plain

import odb_stream as odb
from odb_stream.prepare import clock as clock_module
from odb_stream.prepare.clock import OPENER, WHOLE, Clock, Spent
from odb_stream.prepare.records import prepare_for
from odb_stream.workers.pool import WorkerPool


@pytest.fixture
def fake_clock(monkeypatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(clock_module, "time", made.time)
    return made


def records(given: odb.Pipeline, count: int) -> list:
    return list(given.source.open().reading(odb.World(), seed=0, epoch=0).records())[:count]


@pytest.mark.parametrize("stages", [(), (drop_fifth,), (drop_fifth, fail_at_seven)], ids=["none", "drops", "fails"])
def test_a_clock_changes_no_result(stages):
    given = pipeline(some_lengths(20), *stages, shuffle=False)
    some = records(given, 20)
    timed, untimed = prepare_for(given, 3, clock=Clock()).chunk(some), prepare_for(given, 3).chunk(some)
    assert list(map(plain, timed.results(some))) == list(map(plain, untimed.results(some)))
    assert timed.spent
    assert untimed.spent is None


def test_each_stage_is_given_its_own_time(fake_clock):
    given = pipeline((5,) * 10, Work(fake_clock, 2.0), drop_fifth, Work(fake_clock, 0.5), shuffle=False)
    chunk = prepare_for(given, 0, clock=Clock()).chunk(records(given, 10))
    assert chunk.spent == {
        (0, WHOLE): Spent(10, 24.0),
        (0, OPENER): Spent(10, 0.0),
        (0, 1): Spent(10, 20.0),
        (0, 2): Spent(10, 0.0),
        (0, 3): Spent(8, 4.0),
    }


def test_what_is_loaded_at_the_first_call_of_a_process_is_not_counted(fake_clock):
    given = pipeline((5,) * 6, Work(fake_clock, 1.0, first=100.0))
    prepare = prepare_for(given, 0, clock=Clock())
    some = records(given, 6)
    chunks = [prepare.chunk(some[:3]), prepare.chunk(some[3:])]
    assert [chunk.spent[0, 1] for chunk in chunks] == [Spent(3, 3.0), Spent(3, 3.0)]
    assert [len(chunk.lengths) for chunk in chunks] == [3, 3]
    # A pickled clock starts from scratch: its next call is the first one of another process.
    stage = Work(fake_clock, 1.0)
    again = pickle.loads(pickle.dumps(prepare.clock))
    again.warm_up(lambda: stage(None))
    prepare.clock.warm_up(lambda: stage(None))
    assert fake_clock.now == 100.0 + 7.0 + 1.0


def test_times_come_back_from_workers():
    given = pipeline(some_lengths(30), drop_fifth, shuffle=False)
    some = records(given, 30)
    with WorkerPool(prepare_for(given, 0, clock=Clock()), 1) as pool:
        chunks = [pool.wait(future) for future in [pool.submit(some[:10]), pool.submit(some[10:])]]
    assert [chunk.spent[0, 1].calls for chunk in chunks] == [10, 20]
    assert all(spent.seconds >= 0 for chunk in chunks for spent in chunk.spent.values())
