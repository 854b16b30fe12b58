"""A training run whose ranks are killed again and again ends with the very model of one that ran through."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import torch
from test_resume_pipelines import write

SCRIPT = Path(__file__).with_name("train_and_save.py")
SECONDS = 120.0
KILLS = 3
MOST_ERROR = 1e-9


class Job:
    """A run of two ranks in a folder; each attempt starts both."""

    def __init__(self, folder: Path, shards: Path, kind: str, workers: int = 0) -> None:
        folder.mkdir()
        self.folder, self.shards, self.kind, self.workers = folder, shards, kind, workers
        self.attempts = 0
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self) -> "Job":
        self.attempts += 1
        own = (self.attempts, self.kind, self.workers)
        shared = [str(self.folder), str(self.shards)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), *shared, str(rank), "2", *map(str, own)],
                stdout=subprocess.PIPE,
                stderr=(self.folder / f"errors-{self.attempts}-{rank}").open("w"),
                text=True,
            )
            for rank in range(2)
        ]
        return self

    def kill_after(self, updates: int) -> bool:
        """Kill both ranks once rank 0 has told of so many updates; False if it ended before."""
        told = self._output(0)
        alive = all(told.readline().startswith("update") for _ in range(updates))
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait(SECONDS)
            rank.stdout.close()
        return alive

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


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=MOST_ERROR) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("file", 0), ("file", 2), ("distributed", 0)])
def test_killed_at_random_points_it_ends_with_the_same_model(tmp_path: Path, kind: str, workers: int) -> None:
    write(tmp_path / "shards", [150, 60, 90], indexed=True)
    before = shared_memory()
    through = Job(tmp_path / "through", tmp_path / "shards", kind).start()
    draws = random.Random(f"{kind} {workers}")
    killed = Job(tmp_path / "killed", tmp_path / "shards", kind, workers)
    kills = 0
    while kills < KILLS:
        killed.start()
        assert killed.kill_after(draws.randint(4, 9)), "the run is long enough to be killed so often"
        kills += 1
    assert same(killed.start().finish(), through.finish())
    assert killed.attempts == KILLS + 1
    assert shared_memory() <= before, "nothing is left in shared memory"


@pytest.mark.slow
def test_two_jobs_on_one_host_do_not_disturb_each_other(tmp_path: Path) -> None:
    write(tmp_path / "shards", [100, 40], indexed=True)
    jobs = [Job(tmp_path / name, tmp_path / "shards", "file", workers=1).start() for name in ("first", "second")]
    assert jobs[0].kill_after(4)
    jobs[0].start()
    assert same(jobs[0].finish(), jobs[1].finish())
