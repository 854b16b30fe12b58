"""Trainers that own the loop, on several ranks: the gradient and the weights of one process, whatever the steps."""

import importlib

import pytest
from ranks_support import run_ranks, values
from ranks_training import train_all
from trainer_cases import DEADLINE, cases, check


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_ranks_train_as_one_process(trainer: str, ranks: int) -> None:
    """Fails when the loss is not scaled, the division by the accumulation is kept, or a short window is not stepped."""
    train = importlib.import_module(f"{trainer}_ranks").train
    results = values(run_ranks(train_all, ranks, cases(ranks), train, deadline=DEADLINE))
    for name, case in cases(ranks).items():
        check(case, [of_rank[name] for of_rank in results])
