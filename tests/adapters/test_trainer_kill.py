"""Whole programs: killed under torchrun and started again they end as if nothing had happened."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from torchrun_support import finish, kill_held, start

TESTS = Path(__file__).parents[1]
PIPELINES = TESTS.parent / "pipelines"
RECIPES = ["torch", "accelerate", "lightning", "hf"]
REPORTS = ("--report={folder}/report.json", "--output={folder}/saved")


class Program(NamedTuple):
    """A program that saves: it is killed where it has printed so many lines with a word."""

    path: Path
    steps: int
    given: tuple[str, ...]
    killed_at: tuple[int, str]
    saved: str
    """What it has saved by then."""
    repeated: int = 0
    """The first of all losses in the report of the run that resumed."""
    rel: float = 1e-5

    def start(self, folder: Path, *more: str, ranks: int = 2, held: bool = False) -> subprocess.Popen[str]:
        given = [text.format(folder=folder) for text in (*self.given, *more)]
        return start(self.path, *given, folder=folder, ranks=ranks, held=self.killed_at if held else None)


def recipe(name: str, saved: str) -> Program:
    given = ("--steps=12", "--accumulate=2", *REPORTS)
    return Program(PIPELINES / f"train_{name}.py", 12, given, (7, "step "), saved, repeated=5)


PROGRAMS = {
    "torch": recipe("torch", "save-000001-step-5/checkpoint.json"),
    "accelerate": recipe("accelerate", "000005"),
    "lightning": recipe("lightning", "step=000005.ckpt"),
    "hf": Program(
        PIPELINES / "train_hf.py",
        10,
        ("--steps=10", "--save-steps=3", "--budget=1024", *REPORTS),
        (7, "'loss'"),
        "checkpoint-6",
        rel=1e-7,
    ),
    # Chats with images.
    "vision": Program(
        TESTS / "support" / "vision_program.py",
        7,
        ("{folder}", "7"),
        (5, "update "),
        "save-000001-step-3/checkpoint.json",
        rel=1e-6,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_killed_and_started_again_it_ends_as_the_run_that_was_not(name: str, tmp_path: Path) -> None:
    """Fails when a rank starts its data from the beginning, gets those of another rank, or resumes where it read to."""
    program = PROGRAMS[name]
    folders = [tmp_path / name for name in ("through", "killed")]
    for folder in folders:
        folder.mkdir()
    # accelerate and Lightning make the same updates, but each run that is compared is of the very same program.
    through = finish(program.start(folders[0]), folders[0])
    kill_held(program.start(folders[1], held=True))
    assert (folders[1] / "saved" / program.saved).exists()
    assert not (folders[1] / "report.json").exists()
    resumed = finish(program.start(folders[1]), folders[1])
    assert len(through["loss"]) == program.steps
    assert through["loss"][-1] < through["loss"][0] - 0.3
    assert resumed["loss"] == pytest.approx(through["loss"][program.repeated :], rel=program.rel)
    for figure in {"emitted", "evaluation", "eval_loss"} & {*through}:
        assert resumed[figure] == pytest.approx(through[figure], rel=program.rel)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_one_process_trains_as_well(name: str, tmp_path: Path) -> None:
    report = finish(PROGRAMS[name].start(tmp_path, "--layout=packed", "--steps=3", ranks=1), tmp_path)
    assert len(report["loss"]) == 3 < report["emitted"]
    assert report.get("eval_loss", 0) < report["loss"][0]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_short(name: str) -> None:
    assert len((PIPELINES / f"train_{name}.py").read_text().splitlines()) <= 60
