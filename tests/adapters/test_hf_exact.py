"""Under the Trainer, ranks and accumulation give the gradient, weights, loss and learning rates of one process."""

import itertools
import math
import tempfile
from unittest import mock

import pytest
from hf_support import LOSS_SCALE_WARNING, HfCase, Trained, arguments, mean, mean_loss, model, per_item, train
from ranks_support import run_ranks, values
from ranks_training import loss_of_all, train_all
from trainer_cases import DEADLINE, name_ranks

from odb_stream.adapters.huggingface import StreamTrainer

pytestmark = pytest.mark.slow

MOST_ERROR = 1e-6
CURVE = {"lr_scheduler_type": "cosine", "warmup_steps": 0.1, "logging_steps": 3}

TWO = {
    "mean": HfCase((150, 50), epochs=2),
    "items": HfCase((120, 40), kind="items"),
    "items, packed, 3": HfCase((150, 40), kind="items", settings={"layout": "packed", "grad_accum": 3}),
    "mean, idle, 3": HfCase((90, 20), settings={"rebalance": False, "grad_accum": 3}),
    "per item, idle": HfCase((60, 20), kind="items", loss=per_item, settings={"rebalance": False, "grad_accum": 2}),
    "mean of its own, idle": HfCase((60, 20), loss=mean, settings={"rebalance": False}),
    "qwen3, padded, 3": HfCase((40, 25), kind="qwen3", rate=0.05, settings={"grad_accum": 3}),
    "qwen3, packed, idle": HfCase((40, 8), kind="qwen3", rate=0.05, settings={"layout": "packed", "rebalance": False}),
    "curve": HfCase((150, 50), epochs=2, arguments=CURVE),
    "half an epoch": HfCase((100, 100), epochs=1.5, arguments=CURVE),
}
SPOILT = {"spoilt": HfCase((40, 40), epochs=2, spoilt=True)}
FOUR = {
    "items, 3": HfCase((60, 10, 30, 2), kind="items", settings={"rebalance": False, "grad_accum": 3}),
    "mean, packed": HfCase((50, 10, 20, 5), settings={"layout": "packed"}),
}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Trained]]:
    return values(run_ranks(train_all, 2, TWO | SPOILT, train, deadline=DEADLINE))


def close(found: Trained) -> None:
    found.check(MOST_ERROR)
    assert found.loss_error < MOST_ERROR


@pytest.mark.parametrize("name", TWO)
def test_two_ranks_train_as_one_process(two: list[dict[str, Trained]], name: str) -> None:
    close(two[0][name])
    held = [sorted(itertools.chain(*rank[name].updates)) for rank in two]
    wanted = sum(TWO[name].shares)
    if name == "half an epoch":
        assert 1.5 <= two[0][name].epoch < 1.6
    else:
        assert sorted(held[0] + held[1]) == sorted([*range(wanted)] * int(TWO[name].epochs))
        assert two[0][name].epoch == TWO[name].epochs
    if "idle" in name:
        assert sum(rank[name].idle for rank in two) > 2


def test_the_cases_are_long_enough_and_a_last_window_is_short(two: list[dict[str, Trained]]) -> None:
    """Else nothing above would tell of filling up: fewer steps than windows hold, on both ranks at once."""
    assert len(two[0]["mean"].updates) >= 20
    assert any(min(rank[name].idle for rank in two) > 0 for name in TWO if name.endswith("3"))


def test_a_loss_without_its_scale_is_told_once(two: list[dict[str, Trained]]) -> None:
    for rank in two:
        assert [(name, trained.told) for name, trained in rank.items() if trained.told] == [("spoilt", 1)]
    assert two[0]["spoilt"].gradient_error > MOST_ERROR


def test_four_ranks_train_as_one_process() -> None:
    found = values(run_ranks(train_all, 4, FOUR, train, deadline=DEADLINE))
    for name in FOUR:
        close(found[0][name])


def test_the_learning_rate_follows_samples_whatever_the_ranks(two: list[dict[str, Trained]]) -> None:
    """Every update of either run lies on the one curve over samples seen."""
    alone = train(HfCase((200,), epochs=2, arguments=CURVE))
    close(alone)
    assert len(alone.curve) > len(two[0]["curve"].curve) + 5
    for seen, rate in alone.curve + two[0]["curve"].curve + two[1]["curve"].curve:
        assert rate == pytest.approx(cosine(seen, 400, 40), abs=1e-12)


def cosine(seen: int, total: int, warmup: int) -> float:
    if seen < warmup:
        return 0.5 * seen / warmup
    return 0.25 * (1 + math.cos(math.pi * (seen - warmup) / (total - warmup)))


def test_logs_tell_of_the_stream(two: list[dict[str, Trained]]) -> None:
    logs = two[0]["mean"].logs
    assert two[1]["mean"].logs[-1]["samples_seen"] == logs[-1]["samples_seen"] == 400
    for entry in logs:
        assert 0 <= entry["padding"] < 1
        assert 0 < entry["utilisation"] <= 1
        assert entry["tokens_per_second"] > 0
    assert [entry["loss"] for entry in logs] == [entry["loss"] for entry in two[1]["mean"].logs]


def evaluated(shares: tuple[int, ...]) -> dict[str, list[float]]:
    """The loss of a fresh model on all samples, twice over, and each sample by itself; for both layouts."""
    name_ranks()
    expected = loss_of_all(model("qwen3"), range(sum(shares)), mean_loss)
    found = {}
    for layout in ("padded", "packed"):
        case = HfCase(shares, settings={"layout": layout, "rebalance": False})
        with tempfile.TemporaryDirectory() as folder, mock.patch(LOSS_SCALE_WARNING) as told:
            args = arguments(folder)
            with case.loader() as loader, case.loader(seed=9) as other:
                trainer = StreamTrainer(model("qwen3"), args, train_loader=loader, eval_loader=other)
                losses = [trainer.evaluate()["eval_loss"] for _ in range(2)]
        assert told.call_count == 0
        found[layout] = [*losses, expected]
    return found


def test_evaluation_counts_each_token_once_for_any_number_of_ranks() -> None:
    for found in [evaluated((48,)), *values(run_ranks(evaluated, 2, (40, 8), deadline=DEADLINE))]:
        for first, second, expected in found.values():
            assert first == second
            assert first == pytest.approx(expected, abs=MOST_ERROR)
