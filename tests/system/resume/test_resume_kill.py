"""A training run whose ranks are killed again and again ends with the very model of one that ran through."""

import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import torch
from test_resume_pipelines import write
from torchrun_support import held_at
from waiting import eventually, shared_memory

SCRIPT = Path(__file__).parents[2] / "support" / "train_and_save.py"
SECONDS = 120.0
KILLED_AFTER = (8, 4, 6)
"""Lines of rank 0 in each attempt: twice the second save is written and has not got its name, then comes an update."""
MOST_ERROR = 1e-9


class Job:
    """A run of two ranks in a folder; each attempt starts both."""

    def __init__(self, folder: Path, shards: Path, kind: str, workers: int = 0) -> None:
        folder.mkdir()
        self.folder, self.shards, self.kind, self.workers = folder, shards, kind, workers
        self.attempts = 0
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, *, stand_at: int = 0) -> "Job":
        """Start an attempt; rank 0 stands still after so many lines, and its peer then waits for it."""
        self.attempts += 1
        shared, own = (self.folder, self.shards), (self.attempts, self.kind, self.workers)
        hold = held_at(stand_at, " ") if stand_at else []
        self.ranks = [
            subprocess.Popen(
                [sys.executable, *map(str, [*([] if rank else hold), SCRIPT, *shared, rank, 2, *own])],
                stdout=subprocess.PIPE,
                stderr=(self.folder / f"errors-{self.attempts}-{rank}").open("w"),
                text=True,
            )
            for rank in range(2)
        ]
        return self

    def kill(self, lines: int) -> str:
        """Kill both ranks once rank 0 stands still after so many lines; the last of them."""
        output = self.start(stand_at=lines)._output(0)
        told = [output.readline() for _ in range(lines)]
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait(SECONDS)
            rank.stdout.close()
        return told[-1].strip()

    def finish(self) -> list[torch.Tensor]:
        """Wait for the end; the parameters of the final model."""
        for number, rank in enumerate(self.ranks):
            rank.communicate(timeout=SECONDS)
            errors = (self.folder / f"errors-{self.attempts}-{number}").read_text()
            assert rank.returncode == 0, errors
        return list(torch.load(self.folder / "final.pt", weights_only=True).values())

    def _output(self, rank: int) -> IO[str]:
        output = self.ranks[rank].stdout
        assert output is not None
        return output


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=MOST_ERROR) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("file", 0), ("file", 2), ("distributed", 0)])
def test_killed_again_and_again_it_ends_with_the_same_model(tmp_path: Path, kind: str, workers: int) -> None:
    write(tmp_path / "shards", [150, 60, 90], indexed=True)
    before = shared_memory()
    through = Job(tmp_path / "through", tmp_path / "shards", kind).start()
    killed = Job(tmp_path / "killed", tmp_path / "shards", kind, workers)
    assert [killed.kill(lines) for lines in KILLED_AFTER] == ["saved 6", "saved 6", "update 8"]
    assert same(killed.start().finish(), through.finish())
    # Workers see by themselves that their rank has gone.
    eventually(lambda: shared_memory() <= before)


@pytest.mark.slow
def test_two_jobs_on_one_host_do_not_disturb_each_other(tmp_path: Path) -> None:
    write(tmp_path / "shards", [100, 40], indexed=True)
    jobs = [Job(tmp_path / name, tmp_path / "shards", "file", workers=1) for name in ("first", "second")]
    jobs[1].start()
    assert jobs[0].kill(5) == "update 4"
    assert same(jobs[0].start().finish(), jobs[1].finish())
