"""Training runs for trainers that own the loop: their cases, and what every rank must bring home from one."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from ranks_data import IGNORED, Numbered, sample
from ranks_training import RATE, Case, EpochRecord, compare, flat_gradient, losses, numbers_of

import odb_stream as odb

MOST_ERROR = 1e-6
LEAST_UPDATES = 20
DEADLINE = 240.0
"""Seconds that ranks may take: importing the trainer takes many in each, on a busy machine."""
SMALL = {"budget": odb.Budget(256), "rebalance": False}


def cases(ranks: int) -> dict[str, Case]:
    """Padded and packed, accumulating 1 and 3 steps; the last rank runs out early and idles, prompts are masked."""
    shares = (339, *[200] * (ranks - 2), 90)
    return {
        f"{layout} {steps}": Case(shares, settings={**SMALL, "layout": layout, "grad_accum": steps})
        for layout in ("padded", "packed")
        for steps in ((1, 3) if ranks == 2 else (3,))
    }


def train_cases(train: Callable[[Case], EpochRecord], ranks: int) -> dict[str, EpochRecord]:
    """On a rank: train case after case in one process, because starting one costs seconds."""
    name_ranks()
    return {name: train(case) for name, case in cases(ranks).items()}


@dataclass
class Watch:
    """Notes the steps and gradients of a run as a trainer makes them, and compares it with one process."""

    infos: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[list[int]] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)

    def step(self, info: odb.StepInfo, batch: Mapping[str, Any]) -> None:
        self.infos.append(asdict(info))
        self.numbers.append(numbers_of(dict(batch)))

    def update(self, model: Any) -> None:
        """The trainer is about to step."""
        self.gradients.append(flat_gradient(model))

    def compared(self, model: Any) -> EpochRecord:
        """The record of this rank; rank 0 has trained one process on the same samples."""
        record = EpochRecord(self.infos, self.numbers)
        everyone: list[Any] = [record]
        if dist.is_initialized():
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, record)
        if not dist.is_initialized() or dist.get_rank() == 0:
            compare(record, everyone, self.gradients, model)
        return record


def check(case: Case, ranks: list[EpochRecord]) -> None:
    """Every sample once; gradients and final weights of one process; idle steps and a short last window were there."""
    first, steps = ranks[0], case.settings["grad_accum"]
    assert sorted(n for rank in ranks for n in rank.emitted) == case.numbers
    assert first.gradient_error < MOST_ERROR
    assert first.parameter_error < MOST_ERROR
    assert first.gradient_size > 1e-3
    updates = sum(info["accum_last"] for info in first.infos)
    assert updates >= LEAST_UPDATES
    if steps > 1:
        assert first.infos[-1]["accum_index"] < steps - 1, "the last window is short"
    if len(ranks) > 1:
        assert any(info["idle"] for info in ranks[-1].infos)
        assert any(sum(info["idle"] for info in rank.infos) == 0 for rank in ranks)


def alone(samples: int = 100, *, shuffle: bool = True, **settings: Any) -> odb.Loader:
    """A Loader over numbered samples that all ranks share."""
    given = {"budget": odb.Budget(256), "window": 16, "lookahead": 6, **settings}
    return odb.Loader(odb.Pipeline(odb.FromDataset(Numbered(samples), shuffle=shuffle)), **given)


def check_alone(watch: Watch, model: Any, steps: int) -> None:
    """The gradients of a run in one process, over any number of epochs."""
    record = watch.compared(model)
    assert record.gradient_error < MOST_ERROR
    assert record.parameter_error < MOST_ERROR
    assert len(watch.gradients) == sum(info["accum_last"] for info in record.infos)
    assert steps == 1 or record.infos[-1]["accum_index"] < steps - 1, "the last window is short"


def loss_of_all(model: Any, samples: Iterable[int]) -> float:
    """The mean loss over all supervised tokens of samples, by their numbers."""
    total, tokens = 0.0, 0
    for number in samples:
        ids, labels = (torch.from_numpy(row).long()[None] for row in sample(number))
        total += float(losses(model(ids), labels, "sum"))
        tokens += int((labels[:, 1:] != IGNORED).sum())
    return total / tokens


def name_ranks() -> None:
    """Give trainers the environment that torchrun gives."""
    names = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    more = {"LOCAL_WORLD_SIZE": dist.get_world_size(), "GROUP_RANK": 0, "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in (names | more).items()}, MASTER_ADDR="127.0.0.1")


def token_mean(logits: Any, batch: Mapping[str, Any]) -> Any:
    """The loss that a model returns."""
    return losses(logits, batch["labels"], "mean")


__all__ = [
    "DEADLINE", "RATE", "Watch", "alone", "cases", "check", "check_alone", "loss_of_all", "name_ranks", "token_mean",
    "train_cases",
]  # fmt: skip
