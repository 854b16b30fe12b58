"""The recipes for accelerate and Lightning under torchrun: killed and started again they end as if nothing was."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from torchrun_support import finish, kill_held, start

PIPELINES = Path(__file__).parents[2] / "pipelines"
STEPS, KILLED_AFTER, SAVED = 12, 7, 5


def started(recipe: str, folder: Path, *, held: tuple[int, str] | None = None) -> subprocess.Popen[str]:
    """Two ranks of a recipe, accumulating two batches an update, with checkpoints in ``folder``."""
    given = (f"--steps={STEPS}", "--accumulate=2", f"--report={folder / 'report.json'}", f"--output={folder / 'saved'}")
    return start(PIPELINES / f"train_{recipe}.py", *given, folder=folder, held=held)


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a run that was not killed. Both trainers make the same updates, so that one serves for both."""
    folder = tmp_path_factory.mktemp("through")
    return finish(started("accelerate", folder), folder)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["accelerate", "lightning"])
def test_killed_and_started_again_it_ends_with_the_same_loss(
    recipe: str, tmp_path: Path, through: dict[str, Any]
) -> None:
    """Fails when a rank starts its data anew, or gets those of another rank, or goes on where it was read ahead."""
    kill_held(started(recipe, tmp_path, held=(KILLED_AFTER, "step ")))
    report = finish(started(recipe, tmp_path), tmp_path)
    assert len(through["loss"]) == STEPS
    assert report["loss"] == pytest.approx(through["loss"][SAVED:], rel=1e-5)
    assert report["emitted"] == through["emitted"]
