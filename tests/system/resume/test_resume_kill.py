"""A training run whose ranks are killed again and again ends with the very model of one that ran through."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from make_tars import write_texts
from ranks_data import letters
from ranks_support import Ranks, line_to_test, start_ranks
from waiting import eventually, shared_memory

import odb_stream as odb

SECONDS = 120.0
KILLED_AFTER = (8, 4, 6)
"""Lines of rank 0 in each attempt: twice the second save is written and does not have its name, then an update."""
MOST_ERROR = 1e-9
EPOCHS = 2
SAVE_EVERY = 3
SETTINGS = {"window": 24, "lookahead": 6, "grad_accum": 2, "seed": 5}


def train(folder: Path, shards: Path, workers: int, stop_at: int = 0) -> None:
    """Train a small model in float64 over two epochs, two steps an update, from the last save on.

    All ranks save by torch.distributed.checkpoint after every third update. With ``stop_at``, rank 0 tells the test of
    each update, and of each save that is written and does not have its name yet; after so many lines it stops, to be
    killed, and its peer waits for it.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(90, 6), torch.nn.Linear(6, 90)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    pipeline = odb.Pipeline(odb.Shards(f"{shards}/part-*.tar"), letters)
    updates, lines_left = 0, stop_at

    def tell(line: str) -> None:
        nonlocal lines_left
        if dist.get_rank() == 0 and lines_left:
            line_to_test().send(line)
            lines_left -= 1
            while not lines_left:
                signal.pause()

    def parts() -> dict[str, Any]:
        # Loading fills tensors in place, so a fresh optimizer needs some to fill.
        momentum = {n: {"momentum_buffer": torch.zeros_like(p)} for n, p in enumerate(model.parameters())}
        state = optimizer.state_dict()["state"] or momentum
        return {"model": model.state_dict(), "state": state, f"loader of rank {dist.get_rank()}": loader}

    with odb.Loader(pipeline, budget=odb.Budget(tokens=128), workers=workers, **SETTINGS) as loader:
        if saves := sorted(folder.glob("checkpoint-??????")):
            updates = int(saves[-1].name.rpartition("-")[2])
            checkpoint.load(saved := parts(), checkpoint_id=saves[-1])
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})
        for _ in range(loader.state_dict()["epoch"], EPOCHS):
            for batch in loader:
                step = odb.pop_step(batch)
                logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten())
                (loss * step.loss_scale).backward()
                if not step.accum_last:
                    continue
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
                tell(f"update {updates}")
                if updates % SAVE_EVERY == 0:
                    path = folder / f"checkpoint-{updates:06d}"
                    checkpoint.save(parts(), checkpoint_id=path.with_suffix(".unfinished"))
                    dist.barrier()
                    tell(f"saved {updates}")
                    if dist.get_rank() == 0:
                        os.rename(path.with_suffix(".unfinished"), path)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "final.pt")


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
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_again_and_again_it_ends_with_the_same_model(tmp_path: Path, workers: int) -> None:
    write_texts(tmp_path / "shards", [150, 60, 90], indexed=True)
    before = shared_memory()
    job = tmp_path / "killed", tmp_path / "shards", workers
    assert [killed(lines, *job) for lines in KILLED_AFTER] == ["saved 6", "saved 6", "update 8"]
    resumed = final_model(start(*job), tmp_path / "killed")
    through = final_model(start(tmp_path / "through", tmp_path / "shards", 0), tmp_path / "through")
    assert same(resumed, through)
    # Workers notice on their own that their rank is gone.
    eventually(lambda: shared_memory() <= before)


@pytest.mark.slow
def test_two_jobs_on_one_host_do_not_disturb_each_other(tmp_path: Path) -> None:
    write_texts(tmp_path / "shards", [100, 40], indexed=True)
    first, second = (tmp_path / name for name in ("first", "second"))
    job = tmp_path / "shards", 1
    with start(second, *job) as running:
        assert killed(5, first, *job) == "update 4"
        assert same(final_model(start(first, *job), first), final_model(running, second))
