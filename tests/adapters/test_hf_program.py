"""The example program on two ranks: killed in the midst of training, it goes on and ends as if it had not been."""

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "pipelines" / "train_hf.py"
SECONDS = 240.0
SMALL = ("--budget", "1024")
STEPS, KILLED_AT, SAVED_EACH = 10, 7, 3


def start(folder: Path, *more: str, ranks: int = 2) -> subprocess.Popen[str]:
    """Start the program, in a process group of its own."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    given = ["--steps", str(STEPS), "--save-steps", str(SAVED_EACH), "--output", str(folder / "output")]
    return subprocess.Popen(
        [sys.executable, *launch, str(PROGRAM), *given, "--report", str(folder / "report.json"), *more],
        stdout=subprocess.PIPE,
        stderr=(folder / "errors").open("a"),
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def finish(process: subprocess.Popen[str], folder: Path) -> dict[str, object]:
    """Wait for the end; what the program reports."""
    try:
        process.communicate(timeout=SECONDS)
    finally:
        end(process)
    assert process.returncode == 0, (folder / "errors").read_text()[-4000:]
    report: dict[str, object] = json.loads((folder / "report.json").read_text())
    return report


def end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the program's process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)


def kill_at(process: subprocess.Popen[str], step: int) -> None:
    """Kill all ranks at once when rank 0 has logged so many steps."""
    assert process.stdout is not None
    try:
        logged = (line for line in process.stdout if "'loss'" in line)
        assert len(list(islice(logged, step))) == step
    finally:
        end(process)
        process.stdout.close()


def test_killed_and_resumed_it_ends_as_the_run_that_was_not(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("through", "killed")]
    for folder in folders:
        folder.mkdir()
    through = finish(start(folders[0], *SMALL), folders[0])
    kill_at(start(folders[1], *SMALL), KILLED_AT)
    saved = {path.name for path in (folders[1] / "output").iterdir()}
    assert "checkpoint-6" in saved
    assert f"checkpoint-{STEPS}" not in saved
    resumed = finish(start(folders[1], *SMALL), folders[1])
    assert through["loss"] == pytest.approx(resumed["loss"], abs=1e-6)
    assert through["eval_loss"] == pytest.approx(resumed["eval_loss"], abs=1e-6)
    assert len(through["loss"]) == STEPS  # type: ignore[arg-type]
    assert through["loss"][-1] < through["loss"][0] - 0.3  # type: ignore[index]


def test_one_process_trains_as_well(tmp_path: Path) -> None:
    report = finish(start(tmp_path, "--steps", "4", "--layout", "packed", "--budget", "512", ranks=1), tmp_path)
    assert 4 < report["emitted"] < 40  # type: ignore[operator]
    assert report["eval_loss"] < report["loss"][0]  # type: ignore[index]


def test_the_program_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 60
