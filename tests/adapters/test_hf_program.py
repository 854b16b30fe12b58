"""The example program on two ranks: killed in the midst of training, it goes on and ends as if it had not been."""

import subprocess
from pathlib import Path

import pytest
from torchrun_support import finish, kill_held, start

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "pipelines" / "train_hf.py"
SMALL = ("--budget", "1024")
STEPS, KILLED_AT, SAVED_EACH = 10, 7, 3


def started(folder: Path, *more: str, ranks: int = 2, held: tuple[int, str] | None = None) -> subprocess.Popen[str]:
    """The program, with checkpoints in the folder."""
    given = ("--steps", STEPS, "--save-steps", SAVED_EACH, "--output", folder / "output")
    return start(PROGRAM, *given, "--report", folder / "report.json", *more, folder=folder, ranks=ranks, held=held)


def test_killed_and_resumed_it_ends_as_the_run_that_was_not(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("through", "killed")]
    for folder in folders:
        folder.mkdir()
    through = finish(started(folders[0], *SMALL), folders[0])
    kill_held(started(folders[1], *SMALL, held=(KILLED_AT, "'loss'")))
    assert {path.name for path in (folders[1] / "output").iterdir()} == {"checkpoint-3", "checkpoint-6"}
    resumed = finish(started(folders[1], *SMALL), folders[1])
    assert through["loss"] == pytest.approx(resumed["loss"], abs=1e-6)
    assert through["eval_loss"] == pytest.approx(resumed["eval_loss"], abs=1e-6)
    assert len(through["loss"]) == STEPS  # type: ignore[arg-type]
    assert through["loss"][-1] < through["loss"][0] - 0.3  # type: ignore[index]


def test_one_process_trains_as_well(tmp_path: Path) -> None:
    report = finish(started(tmp_path, "--steps", "4", "--layout", "packed", "--budget", "512", ranks=1), tmp_path)
    assert 4 < report["emitted"] < 40  # type: ignore[operator]
    assert report["eval_loss"] < report["loss"][0]  # type: ignore[index]
