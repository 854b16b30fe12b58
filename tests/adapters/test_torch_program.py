"""The recipe of the plain loop, alone and under torchrun: it ends, reports, and the loss falls."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "pipelines" / "train_torch.py"
SECONDS = 240.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_program_trains_and_reports(ranks: int, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, *launch, str(PROGRAM), "--steps", "8", "--report", str(report), "--accumulate", str(ranks)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(report.read_text())
    assert len(told["loss"]) == 8
    assert told["loss"][-1] < told["loss"][0]
    assert told["emitted"] > 8 * ranks
    assert f"8 updates, {told['emitted']} samples" in done.stdout
