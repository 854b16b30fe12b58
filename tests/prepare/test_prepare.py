"""Prepare one record: what stages may return, what becomes of their mistakes, and what a finished sample is."""

import functools
import re
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from odb_stream.errors import ConfigError, StageError
from odb_stream.prepare.records import Prepare, SourceStages, stage_name
from odb_stream.sample import IGNORED_LABEL, Drop, PreparedSample, Record, Sample, SampleRef

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

    def look(sample: Sample) -> Sample:
        seen.append(sample)
        return sample

    prepared(lambda sample: kind(input_ids=[1, 2]), look, text="gone")
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
    with pytest.raises(StageError, match=f"returned {type(result).__name__}, at {re.escape(PLACE)}"):
        run(lambda sample: result, input_ids=[1, 2])
    with pytest.raises(StageError, match=f"returned {type(result).__name__}, at {re.escape(PLACE)}"):
        run(opener=lambda record: result)


def test_exception_in_a_stage_names_stage_place_and_cause() -> None:
    with pytest.raises(StageError) as caught:
        run(Append(1), text="no ids")
    assert "stage Append raised KeyError: 'input_ids', at " + PLACE in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_errors_of_the_hierarchy_pass_as_they_are() -> None:
    error = ConfigError("no template")

    def refuse(sample: Sample) -> Sample:
        raise error

    with pytest.raises(ConfigError) as caught:
        run(refuse, input_ids=[1, 2])
    assert caught.value is error


def test_exit_requests_are_not_swallowed() -> None:
    def interrupt(sample: Sample) -> Sample:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupt)


def test_names_of_stages() -> None:
    assert stage_name(Append(1)) == "Append"
    assert stage_name(test_names_of_stages) == "test_names_of_stages"
    assert stage_name(functools.partial(functools.partial(test_names_of_stages))) == "test_names_of_stages"
    assert stage_name(Append(1).__call__) == "Append.__call__"
    assert stage_name(len) == "len"


def torch_tensor(values: list[int]) -> Any:
    return pytest.importorskip("torch").tensor(values)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        torch_tensor,
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


def test_bounds_of_int32() -> None:
    bounds = [-(2**31), 2**31 - 1]
    assert prepared(input_ids=bounds).input_ids.tolist() == bounds


@pytest.mark.parametrize("field", ["input_ids", "labels"])
@pytest.mark.parametrize(
    "value", [[[1, 2]], 5, None, "12", [1.0, 2.0], [True, False], [2**70, 1], [[1], [2, 3]], np.zeros((2, 2), int)]
)
def test_not_a_row_of_integers(field: str, value: object) -> None:
    fields: dict[str, Any] = {"input_ids": [1, 2], field: value}
    with pytest.raises(StageError, match=f"{field} is .*, at {re.escape(PLACE)}"):
        run(**fields)


def test_tensor_that_numpy_cannot_read() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(StageError, match="input_ids is Tensor"):
        run(input_ids=torch.ones(2, requires_grad=True))


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


@pytest.mark.parametrize("empty", [[], (), np.empty(0, dtype=np.float64)])
def test_empty_is_a_drop(empty: object) -> None:
    drop = run(input_ids=empty)
    assert isinstance(drop, Drop)
    assert drop.reason == "empty"
    assert PLACE in drop.detail


@pytest.mark.parametrize(
    ("ids", "labels"), [([4], None), ([4, 5], [4, IGNORED_LABEL]), ([4, 5, 6], [IGNORED_LABEL] * 3)]
)
def test_nothing_supervised_after_the_shift_is_a_drop(ids: list[int], labels: list[int] | None) -> None:
    drop = run(input_ids=ids) if labels is None else run(input_ids=ids, labels=labels)
    assert isinstance(drop, Drop)
    assert drop.reason == "nothing_supervised"
    assert PLACE in drop.detail


def test_supervised_counts_after_the_shift() -> None:
    assert prepared(input_ids=[1, 2, 3, 4], labels=[1, IGNORED_LABEL, 3, 4]).supervised == 2
