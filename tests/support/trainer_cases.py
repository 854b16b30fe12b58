"""Training runs for trainers that own the loop: their cases, and what every rank must bring home from one."""

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from ranks_data import Numbered
from ranks_training import Case, EpochRecord, Watch, losses

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


def name_ranks() -> None:
    """Give trainers the environment that torchrun gives, where there are ranks."""
    if not dist.is_initialized():
        return
    names = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    more = {"LOCAL_WORLD_SIZE": dist.get_world_size(), "GROUP_RANK": 0, "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in (names | more).items()}, MASTER_ADDR="127.0.0.1")


def token_mean(logits: Any, batch: Mapping[str, Any]) -> Any:
    """The loss that a model returns."""
    return losses(logits, batch["labels"], "mean")
