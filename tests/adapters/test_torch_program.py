"""The recipe of the plain loop, alone and under torchrun: it ends, reports, and the loss falls."""

from pathlib import Path

import pytest
from torchrun_support import finish, start

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "pipelines" / "train_torch.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_program_trains_and_reports(ranks: int, tmp_path: Path) -> None:
    given = ("--steps", 8, "--report", tmp_path / "report.json", "--accumulate", ranks)
    told = finish(start(PROGRAM, *given, folder=tmp_path, ranks=ranks), tmp_path)
    assert len(told["loss"]) == 8
    assert told["loss"][-1] < told["loss"][0]
    assert told["emitted"] > 8 * ranks
