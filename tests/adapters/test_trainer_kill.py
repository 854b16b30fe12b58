"""The recipes for accelerate and Lightning under torchrun: killed and started again they end as if nothing was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PIPELINES = Path(__file__).parents[2] / "pipelines"
SECONDS = 240.0
STEPS, KILLED_AFTER, SAVED = 12, 7, 5


def start(recipe: str, folder: Path) -> subprocess.Popen[str]:
    """Two ranks of a recipe, accumulating two batches an update, with checkpoints in ``folder``."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    given = [f"--steps={STEPS}", "--accumulate=2", f"--report={folder / 'report.json'}", f"--output={folder / 'saved'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*launch, str(PIPELINES / f"train_{recipe}.py"), *given],
        stdout=subprocess.PIPE,
        stderr=(folder / "errors").open("w"),
        text=True,
        env=environment,
    )


def finish(job: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """The report of a run that ends by itself."""
    job.communicate(timeout=SECONDS)
    assert job.returncode == 0, (folder / "errors").read_text()
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def kill(job: subprocess.Popen[str]) -> None:
    """Kill the ranks and what started them, once rank 0 has told of enough updates."""
    assert job.stdout is not None
    assert any(line.startswith(f"step {KILLED_AFTER} ") for line in job.stdout), "it ended before"
    ranks = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if parent(path) == job.pid]
    assert len(ranks) == 2
    for process in (*ranks, job.pid):
        os.kill(process, signal.SIGKILL)
    job.wait(SECONDS)
    job.stdout.close()


def parent(stat: Path) -> int | None:
    """The parent of a process, by its file in /proc."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a run that was not killed. Both trainers make the same updates, so that one serves for both."""
    folder = tmp_path_factory.mktemp("through")
    return finish(start("accelerate", folder), folder)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["accelerate", "lightning"])
def test_killed_and_started_again_it_ends_with_the_same_loss(
    recipe: str, tmp_path: Path, through: dict[str, Any]
) -> None:
    """Fails when a rank starts its data anew, or gets those of another rank, or goes on where it was read ahead."""
    kill(start(recipe, tmp_path))
    report = finish(start(recipe, tmp_path), tmp_path)
    assert len(through["loss"]) == STEPS
    assert report["loss"] == pytest.approx(through["loss"][SAVED:], rel=1e-5)
    assert report["emitted"] == through["emitted"]
