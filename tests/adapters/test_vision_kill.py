"""Chats with images on two ranks: trained, killed, resumed, evaluated, and equal to the run that was never killed."""

from pathlib import Path

import pytest
from torchrun_support import finish, kill_held, start

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "support" / "vision_program.py"
STEPS, KILLED_AT = 7, 5


def test_a_killed_run_ends_as_one_that_ran_through(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("through", "killed")]
    for folder in folders:
        folder.mkdir()
    through = finish(start(PROGRAM, folders[0], STEPS, folder=folders[0]), folders[0])
    kill_held(start(PROGRAM, folders[1], STEPS, folder=folders[1], held=(KILLED_AT, "update ")))
    assert (folders[1] / "saved" / "save-000001-step-3" / "checkpoint.json").exists()
    assert not (folders[1] / "report.json").exists()
    resumed = finish(start(PROGRAM, folders[1], STEPS, folder=folders[1]), folders[1])
    assert resumed["loss"] == pytest.approx(through["loss"], rel=1e-6)
    assert resumed["evaluation"] == pytest.approx(through["evaluation"], rel=1e-6)
    assert len(through["loss"]) == STEPS
    assert through["loss"][-1] < through["loss"][0]
