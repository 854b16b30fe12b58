"""With Lightning on several ranks: the gradient and the weights of one process, whatever the steps."""

import pytest
from lightning_ranks import train_all
from ranks_support import run_ranks, values
from trainer_cases import DEADLINE, cases, check


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_process(ranks: int) -> None:
    """Fails when the loss is not scaled, or the division by the accumulation is left in."""
    results = values(run_ranks(train_all, ranks, deadline=DEADLINE))
    for name, case in cases(ranks).items():
        check(case, [of_rank[name] for of_rank in results])
