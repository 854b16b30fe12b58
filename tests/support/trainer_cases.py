"""Training runs for trainers that own the loop: their cases, and what every rank must bring home from one."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from ranks_data import VOCABULARY, Numbered
from ranks_support import run_ranks, values
from ranks_training import Case, EpochRecord, Watch, losses, train_all
from torch import nn

import odb_stream as odb

MOST_ERROR = 1e-6
DEADLINE = 240.0
"""Seconds that ranks may take: importing the trainer takes many in each, on a busy machine."""
SMALL: dict[str, Any] = {"budget": odb.Budget(256), "window": 16, "lookahead": 6}


def check_ranks(train: Callable[[Case], EpochRecord], ranks: int) -> None:
    """Train padded and packed, accumulating 1 and 3 steps; the last rank runs out early and idles, prompts are masked.

    Every sample once; gradients and final weights of one process; idle steps and a short last window were there.
    """
    shares = (339, *[200] * (ranks - 2), 90)
    cases = {
        f"{layout} {steps}": Case(
            shares, settings={"budget": odb.Budget(256), "rebalance": False, "layout": layout, "grad_accum": steps}
        )
        for layout in ("padded", "packed")
        for steps in ((1, 3) if ranks == 2 else (3,))
    }
    results = values(run_ranks(train_all, ranks, cases, train, deadline=DEADLINE))
    for name, case in cases.items():
        records = [of_rank[name] for of_rank in results]
        first, steps = records[0], case.settings["grad_accum"]
        assert sorted(n for record in records for n in record.emitted) == case.numbers
        first.check(MOST_ERROR)
        assert sum(info["accum_last"] for info in first.infos) >= 20
        assert steps == 1 or first.infos[-1]["accum_index"] < steps - 1, "the last window is short"
        idle = [sum(info["idle"] for info in record.infos) for record in records]
        assert idle[-1] > 0 == min(idle)


def alone(samples: int = 100, *, shuffle: bool = True, **settings: Any) -> odb.Loader:
    """A Loader over numbered samples that all ranks share."""
    return odb.Loader(odb.Pipeline(odb.FromDataset(Numbered(samples), shuffle=shuffle)), **{**SMALL, **settings})


def check_alone(watch: Watch, model: Any, steps: int) -> None:
    """The gradients of a run in one process, over any number of epochs."""
    record = watch.compared(model)
    record.check(MOST_ERROR)
    assert len(watch.gradients) == sum(info["accum_last"] for info in record.infos)
    assert steps == 1 or record.infos[-1]["accum_index"] < steps - 1, "the last window is short"


def name_ranks() -> None:
    """Give trainers the environment that torchrun gives, where there are ranks."""
    if not dist.is_initialized():
        return
    names = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    more = {"LOCAL_WORLD_SIZE": dist.get_world_size(), "GROUP_RANK": 0, "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in (names | more).items()}, MASTER_ADDR="127.0.0.1")


class Output(NamedTuple):
    """What loops need of a model of transformers. FSDP finds tensors in tuples, not in any object."""

    loss: torch.Tensor


class Scored(nn.Module):
    """Each token predicts the next one through two layers: no sample sees another, padded or packed. In float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, VOCABULARY)
        self.double()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **others: Any) -> Output:
        return Output(losses(self.down(torch.tanh(self.up(self.embed(input_ids)))), labels, "mean"))


def scored_loss(trained: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    output: Output = trained(ids, labels)
    return output.loss
