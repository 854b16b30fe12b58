"""The recipes: killed under torchrun and started again they end as if nothing had happened."""

import subprocess
from pathlib import Path

import pytest
from torchrun_support import finish, kill_held, start

PIPELINES = Path(__file__).parents[2] / "pipelines"
STEPS, KILLED_AFTER, SAVED = 12, 7, 5


def started(
    recipe: str, folder: Path, *more: str, ranks: int = 2, held: tuple[int, str] | None = None
) -> subprocess.Popen[str]:
    """A recipe on some ranks, accumulating two batches an update, with checkpoints in ``folder``."""
    given = (f"--steps={STEPS}", "--accumulate=2", f"--report={folder / 'report.json'}", f"--output={folder / 'saved'}")
    return start(PIPELINES / f"train_{recipe}.py", *given, *more, folder=folder, ranks=ranks, held=held)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["torch", "accelerate", "lightning"])
def test_killed_and_started_again_it_ends_with_the_same_loss(recipe: str, tmp_path: Path) -> None:
    """Fails when a rank starts its data from the beginning, gets those of another rank, or resumes where it read to."""
    folders = [tmp_path / name for name in ("through", "killed")]
    for folder in folders:
        folder.mkdir()
    # accelerate and Lightning make the same updates, but each run that is compared is of the very same program.
    through = finish(started(recipe, folders[0]), folders[0])
    kill_held(started(recipe, folders[1], held=(KILLED_AFTER, "step ")))
    report = finish(started(recipe, folders[1]), folders[1])
    assert len(through["loss"]) == STEPS
    assert through["loss"][-1] < through["loss"][0]
    assert report["loss"] == pytest.approx(through["loss"][SAVED:], rel=1e-5)
    assert report["emitted"] == through["emitted"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["torch", "accelerate", "lightning"])
def test_one_process_trains_as_well(recipe: str, tmp_path: Path) -> None:
    report = finish(started(recipe, tmp_path, "--layout=packed", "--steps=3", ranks=1), tmp_path)
    assert len(report["loss"]) == 3


@pytest.mark.parametrize("recipe", ["torch", "accelerate", "lightning", "hf"])
def test_recipes_are_short(recipe: str) -> None:
    assert len((PIPELINES / f"train_{recipe}.py").read_text().splitlines()) <= 60
