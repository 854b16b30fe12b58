"""A chunk gives back, after its journey as bytes, exactly the results of preparing its records one by one."""

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_stages import plain

from odb_stream.errors import OdbStreamError, StageError, StateError
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import IGNORED_LABEL, Drop, PreparedSample, Record, SampleRef

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
