"""A training run whose ranks are killed again and again ends with the very model of one that ran through."""

from pathlib import Path
from typing import Any

import pytest
import torch
from make_tars import write_texts
from ranks_support import Ranks, start_ranks
from train_and_save import train
from waiting import eventually, shared_memory

SECONDS = 120.0
KILLED_AFTER = (8, 4, 6)
"""Lines of rank 0 in each attempt: twice the second save is written and does not have its name, then an update."""
MOST_ERROR = 1e-9


def start(folder: Path, *job: Any) -> Ranks:
    folder.mkdir(exist_ok=True)
    return start_ranks(train, 2, folder, *job)


def killed(lines: int, folder: Path, *job: Any) -> str:
    """Start an attempt and kill both ranks once rank 0 has told so many lines and stopped; the last line."""
    with start(folder, *job, lines) as ranks:
        return [ranks.hear(0, SECONDS) for _ in range(lines)][-1]


def final_model(ranks: Ranks, folder: Path) -> list[torch.Tensor]:
    with ranks:
        ranks.values(SECONDS)
    return list(torch.load(folder / "final.pt", weights_only=True).values())


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=MOST_ERROR) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("file", 0), ("file", 2), ("distributed", 0)])
def test_killed_again_and_again_it_ends_with_the_same_model(tmp_path: Path, kind: str, workers: int) -> None:
    write_texts(tmp_path / "shards", [150, 60, 90], indexed=True)
    before = shared_memory()
    job = tmp_path / "killed", tmp_path / "shards", kind, workers
    assert [killed(lines, *job) for lines in KILLED_AFTER] == ["saved 6", "saved 6", "update 8"]
    resumed = final_model(start(*job), tmp_path / "killed")
    through = final_model(start(tmp_path / "through", tmp_path / "shards", kind, 0), tmp_path / "through")
    assert same(resumed, through)
    # Workers notice on their own that their rank is gone.
    eventually(lambda: shared_memory() <= before)


@pytest.mark.slow
def test_two_jobs_on_one_host_do_not_disturb_each_other(tmp_path: Path) -> None:
    write_texts(tmp_path / "shards", [100, 40], indexed=True)
    first, second = (tmp_path / name for name in ("first", "second"))
    job = tmp_path / "shards", "file", 1
    with start(second, *job) as running:
        assert killed(5, first, *job) == "update 4"
        assert same(final_model(start(first, *job), first), final_model(running, second))
