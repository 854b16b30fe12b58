"""Damaged data: counted against a budget over all ranks, and listed so that it can be repaired."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from loader_data import Ready, loader
from ranks_support import run_ranks

import odb_stream as odb


def fifths(drop: odb.Drop) -> Callable[[odb.Sample], odb.Sample | odb.Drop]:
    """Every fifth sample is dropped so."""
    return lambda sample: drop if sample.ref.index % 5 == 0 else sample


broken_fifths = fifths(odb.Drop("broken", "as if", damaged=True))
unwanted_fifths = fifths(odb.Drop("unwanted"))


def consume(stream: odb.Loader) -> int:
    return sum(odb.pop_step(batch).samples for batch in stream)


def test_a_few_damaged_samples_are_tolerated_and_those_left_out_on_purpose_do_not_count() -> None:
    with loader(Ready(200), broken_fifths) as stream:
        assert consume(stream) == 160
        assert stream.report()["damaged"] == stream.report()["global"]["damaged"] == 40
    with loader(Ready(2000), unwanted_fifths, failure_budget=odb.FailureBudget(samples=0)) as stream:
        assert consume(stream) == 1600


@pytest.mark.parametrize(
    ("size", "budget", "message"),
    [
        (400, odb.FailureBudget(), r"5\d of \d+ records .* allows 50 "),
        (200, odb.FailureBudget(samples=39), r"40 of 200 records .* allows 39"),
        (2000, odb.FailureBudget(share=0.1), r"allows 1\d\d"),
    ],
)
def test_beyond_the_budget_the_run_stops_and_says_what_to_do(size, budget, message) -> None:
    with loader(Ready(size), broken_fifths, failure_budget=budget) as stream:
        with pytest.raises(odb.ShardError, match=message) as error:
            consume(stream)
        assert "or raise failure_budget" in str(error.value)


def test_damaged_samples_are_listed_and_a_file_is_continued(tmp_path: Path) -> None:
    for _ in range(2):
        with loader(Ready(100), broken_fifths, quarantine=str(tmp_path / "bad")) as stream:
            consume(stream)
            consume(stream)
    lines = [json.loads(line) for line in (tmp_path / "bad" / "rank-00000.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert {(line["ref"][2], line["epoch"]) for line in lines} == {(i, e) for i in range(0, 100, 5) for e in (0, 1)}
    assert {(line["shard"], line["reason"], line["detail"]) for line in lines} == {("dataset Ready", "broken", "as if")}


@pytest.mark.parametrize("setting", [{"share": 1.5}, {"share": True}, {"samples": -1}, {"samples": 0.5}])
def test_bad_budgets_are_refused_by_name(setting: dict) -> None:
    with pytest.raises(odb.ConfigError, match=f"FailureBudget.{next(iter(setting))}"):
        odb.FailureBudget(**setting)


def stop_together() -> tuple[int, str]:
    """Only rank 1 has damaged data; how many steps this rank made, and why it stopped."""
    import torch.distributed as dist

    rank = dist.get_rank()
    stage = broken_fifths if rank == 1 else unwanted_fifths
    steps = 0
    with loader(Ready(600), stage, sharded=True, failure_budget=odb.FailureBudget(samples=30)) as stream:
        try:
            for batch in stream:
                odb.pop_step(batch)
                steps += 1
        except odb.ShardError as error:
            return steps, str(error)
    return steps, "it did not stop"


def test_all_ranks_stop_at_the_same_step_for_the_same_reason() -> None:
    first, second = (outcome.value for outcome in run_ranks(stop_together, 2))
    assert first == second
    assert "records over all ranks are damaged, the failure budget allows 30" in first[1]
