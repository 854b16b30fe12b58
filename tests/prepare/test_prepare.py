"""Prepare one record: what stages may return, what becomes of their mistakes, what a finished sample is.

Then a chunk: after its journey as bytes it gives back exactly the results of preparing its records one by one. With a
clock the results are the same, with each stage's own time, without what a first call loads.
"""

import functools
import pickle
import re
import threading
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inspection_data import FakeClock, Work, drop_fifth, fail_at_seven, pipeline, some_lengths
from worker_stages import plain

import odb_stream as odb
from odb_stream.errors import ConfigError, OdbStreamError, StageError, StateError
from odb_stream.prepare import clock as clock_module
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.prepare.clock import OPENER, WHOLE, Clock, Spent
from odb_stream.prepare.records import Prepare, SourceStages, prepare_for, stage_name
from odb_stream.sample import IGNORED_LABEL, Drop, PreparedSample, Record, Sample, SampleRef
from odb_stream.workers.pool import WorkerPool

RECORD = Record(SampleRef(0, 2, 5, 1024), "cat", "train-2.tar", {"txt": b"miaow"}, epoch=3)
PLACE = "train-2.tar, key 'cat' (sample 5, byte offset 1024)"


def run(*stages: Callable[[Sample], Any], opener: Callable[[Record], Any] | None = None, **fields: Any) -> Any:
    return Prepare((SourceStages(opener or (lambda record: fields), stages),), seed=17).record(RECORD)


def prepared(*stages: Callable[[Sample], Any], **fields: Any) -> PreparedSample:
    sample = run(*stages, **fields)
    assert isinstance(sample, PreparedSample)
    return sample


@dataclass(frozen=True)
class Append:
    token: int

    def __call__(self, sample: Sample) -> Sample:
        sample["input_ids"] = [*sample["input_ids"], self.token]
        return sample


def test_stages_run_in_order_and_labels_default_to_the_ids() -> None:
    sample = prepared(Append(8), Append(9), input_ids=[7])
    assert sample.ref == RECORD.ref
    assert sample.input_ids.tolist() == [7, 8, 9]
    assert sample.labels.tolist() == [IGNORED_LABEL, 8, 9]
    assert (sample.supervised, sample.length) == (2, 3)
    assert prepared(input_ids=[1, 2, 3, 4], labels=[1, IGNORED_LABEL, 3, 4]).supervised == 2
    assert sample.input_ids.dtype == sample.labels.dtype == np.int32


def test_a_record_passes_the_stages_of_its_own_source() -> None:
    first = SourceStages(lambda record: {"input_ids": [1, 1]})
    second = SourceStages(lambda record: {"input_ids": [2, 2]}, (Append(3),))
    sample = Prepare((first, second), seed=0).record(Record(SampleRef(1, 0, 0, -1), "k", "s"))
    assert isinstance(sample, PreparedSample)
    assert sample.input_ids.tolist() == [2, 2, 3]


@pytest.mark.parametrize("kind", [dict, UserDict, Sample])
def test_any_mapping_becomes_the_same_sample(kind: type) -> None:
    """Place and draws stay, whatever type a stage returns; a bare Sample has neither of its own."""
    seen: list[Sample] = []
    prepared(lambda sample: kind(input_ids=[1, 2]), lambda sample: (seen.append(sample), sample)[1], text="gone")
    (sample,) = seen
    assert type(sample) is Sample
    assert dict(sample) == {"input_ids": [1, 2]}
    assert (sample.ref, sample.key, sample.shard) == (RECORD.ref, "cat", "train-2.tar")
    assert (sample.seed, sample.epoch) == (17, 3)


def test_drop_ends_the_way() -> None:
    drop = Drop("too_dull", "miaow")
    assert run(lambda sample: drop, Append(1), input_ids=[1, 2]) is drop
    assert run(Append(1), opener=lambda record: drop) is drop


@pytest.mark.parametrize("result", [None, 3, ["input_ids"], "input_ids"])
def test_other_results_are_errors(result: object) -> None:
    for stages, opener in (([lambda sample: result], None), ([], lambda record: result)):
        with pytest.raises(StageError, match=f"returned {type(result).__name__}, at {re.escape(PLACE)}"):
            run(*stages, opener=opener, input_ids=[1, 2])


@pytest.mark.parametrize("error", [ConfigError("no template"), KeyboardInterrupt()])
def test_errors_of_the_hierarchy_and_exit_requests_pass_as_they_are(error: BaseException) -> None:
    def refuse(sample: Sample) -> Sample:
        raise error

    with pytest.raises(type(error)) as caught:
        run(refuse, input_ids=[1, 2])
    assert caught.value is error


def test_exception_in_a_stage_names_stage_place_and_cause() -> None:
    with pytest.raises(StageError) as caught:
        run(Append(1), text="no ids")
    assert "stage Append raised KeyError: 'input_ids', at " + PLACE in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_names_of_stages() -> None:
    assert stage_name(Append(1)) == "Append"
    assert stage_name(test_names_of_stages) == "test_names_of_stages"
    assert stage_name(functools.partial(functools.partial(test_names_of_stages))) == "test_names_of_stages"
    assert stage_name(Append(1).__call__) == "Append.__call__"
    assert stage_name(len) == "len"


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        torch.tensor,
        lambda values: np.array(values, dtype=np.int64),
        lambda values: np.array(values, dtype=np.uint16),
        lambda values: np.array(values, dtype=np.int32)[::1],
    ],
)
def test_integers_of_any_kind(convert: Callable[[list[int]], Any]) -> None:
    ids, labels = convert([5, 6, 7]), convert([1, 2, 3])
    sample = prepared(input_ids=ids, labels=labels)
    assert sample.input_ids.tolist() == [5, 6, 7]
    assert sample.labels.tolist() == [IGNORED_LABEL, 2, 3]
    assert list(labels) == [1, 2, 3], "the user's own array is left alone"
    assert not np.shares_memory(sample.input_ids, np.asarray(ids))
    bounds = [-(2**31), 2**31 - 1]
    assert prepared(input_ids=bounds).input_ids.tolist() == bounds


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": []}, "empty"),
        ({"input_ids": ()}, "empty"),
        ({"input_ids": np.empty(0, dtype=np.float64)}, "empty"),
        ({"input_ids": [4]}, "nothing_supervised"),
        ({"input_ids": [4, 5], "labels": [4, IGNORED_LABEL]}, "nothing_supervised"),
        ({"input_ids": [4, 5, 6], "labels": [IGNORED_LABEL] * 3}, "nothing_supervised"),
    ],
)
def test_samples_without_tokens_or_loss_are_drops(fields: dict[str, Any], reason: str) -> None:
    drop = run(**fields)
    assert isinstance(drop, Drop)
    assert drop.reason == reason
    assert PLACE in drop.detail


@pytest.mark.parametrize("field", ["input_ids", "labels"])
@pytest.mark.parametrize(
    "value",
    [[[1, 2]], 5, None, "12", [1.0, 2.0], [True, False], [2**70, 1], [[1], [2, 3]], np.zeros((2, 2), int),
     torch.ones(2, requires_grad=True)],
)  # fmt: skip
def test_not_a_row_of_integers(field: str, value: object) -> None:
    fields: dict[str, Any] = {"input_ids": [1, 2], field: value}
    with pytest.raises(StageError, match=f"{field} is .*, at {re.escape(PLACE)}"):
        run(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [], "tools": []}, "input_ids, .*messages, tools"),
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "2 values .* 3"),
        ({"input_ids": [0, 2**31]}, "2147483648"),
        ({"input_ids": [0, -(2**31) - 1]}, "-2147483649"),
    ],
)
def test_bad_fields(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(StageError, match=words) as caught:
        run(**fields)
    assert PLACE in str(caught.value)


Item = dict[str, Any] | Drop | OdbStreamError


def prepare_items(items: list[Item]) -> tuple[Prepare, list[Record]]:
    """A pipeline whose opener returns (or raises) the item of each record."""

    def opener(record: Record) -> dict[str, Any] | Drop:
        item = items[record.ref.index]
        if isinstance(item, OdbStreamError):
            raise item
        return item

    records = [Record(SampleRef(0, 0, i, -1), f"k{i}", "s") for i in range(len(items))]
    return Prepare((SourceStages(opener),), seed=0), records


def travelled(chunk: PreparedChunk) -> PreparedChunk:
    copy = pickle.loads(pickle.dumps(chunk, 5))
    assert isinstance(copy, PreparedChunk)
    return copy


pairs = st.lists(st.tuples(st.integers(-200, 2**31 - 1), st.integers(0, 9) | st.just(IGNORED_LABEL)), max_size=6)
plain_rows = pairs.map(lambda pairs: {"input_ids": [a for a, _ in pairs]})
labelled_rows = pairs.map(lambda pairs: {"input_ids": [a for a, _ in pairs], "labels": [b for _, b in pairs]})
drops = st.builds(Drop, st.sampled_from(["dull", "long"]), st.text(max_size=3))
errors = st.builds(StageError, st.text(max_size=5))


@given(st.lists(plain_rows | drops) | st.lists(plain_rows | labelled_rows | drops | errors))
def test_results_survive_the_journey(items: list[Item]) -> None:
    prepare, records = prepare_items(items)
    expected = []
    for record in records:
        try:
            expected.append(plain(prepare.record(record)))
        except OdbStreamError as error:
            expected.append(plain(error))
            break
    here = prepare.chunk(records)
    for chunk in (here, travelled(here)):
        assert [plain(result) for result in chunk.results(records)] == expected


def test_labels_travel_only_when_they_say_something() -> None:
    prepare, records = prepare_items([{"input_ids": [1, 2]}, {"input_ids": [3, 4], "labels": [3, 4]}])
    assert prepare.chunk(records).labels is None
    prepare, records = prepare_items([{"input_ids": [1, 2]}, {"input_ids": [3, 4, 5], "labels": [3, -100, 5]}])
    labels = prepare.chunk(records).labels
    assert labels is not None
    assert labels.tolist() == [-100, 2, -100, -100, 5]


def test_samples_are_views_into_the_chunk() -> None:
    prepare, records = prepare_items([{"input_ids": [1, 2]}, {"input_ids": [3, 4, 5]}])
    chunk = travelled(prepare.chunk(records))
    for result in chunk.results(records):
        assert isinstance(result, PreparedSample)
        assert np.shares_memory(result.input_ids, chunk.input_ids)


def test_a_failure_ends_the_chunk() -> None:
    calls = []

    def opener(record: Record) -> dict[str, Any]:
        calls.append(record.ref.index)
        if record.ref.index == 1:
            raise StateError("stop")
        return {"input_ids": [1, 2]}

    _, records = prepare_items([Drop("x")] * 4)
    chunk = Prepare((SourceStages(opener),), 0).chunk(records)
    assert calls == [0, 1]
    assert [type(result) for result in chunk.results(records)] == [PreparedSample, StateError]


class Odd(StageError):
    """An error that neither pickles nor can be built from its text."""

    def __init__(self, first: str, lock: Any) -> None:
        super().__init__(first)
        self.lock = lock


def test_errors_that_do_not_pickle_travel_as_text() -> None:
    odd = Odd("odd one", threading.Lock())
    odd.__cause__ = ValueError(threading.Lock())
    prepare, records = prepare_items([odd])
    chunk = prepare.chunk(records)
    assert chunk.failure is odd, "in the same process the error keeps its cause"
    failure = travelled(chunk).failure
    assert type(failure) is StageError
    assert str(failure) == "odd one"
    assert "ValueError: <unlocked" in failure.__notes__[0]
    assert "in opener" in failure.__notes__[0]


def test_other_records_are_refused() -> None:
    prepare, records = prepare_items([{"input_ids": [1, 2]}, Drop("x")])
    chunk = prepare.chunk(records)
    for wrong in (records[:1], [*records, records[0]]):
        with pytest.raises(ValueError, match=f"these {len(wrong)} records"):
            list(chunk.results(wrong))


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
