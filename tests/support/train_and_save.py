"""A training run on this rank that saves as it goes, and resumes from its last save when it is started again."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ranks_data import letters
from ranks_support import line_to_test

import odb_stream as odb

EPOCHS = 2
SAVE_EVERY = 3
SETTINGS = {"window": 24, "lookahead": 6, "grad_accum": 2, "seed": 5}


def train(folder: Path, shards: Path, kind: str, workers: int, stop_at: int = 0) -> None:
    """Train a small model in float64 over two epochs, two steps an update, and save all after every third update.

    By ``kind``, "file": rank 0 saves into one file that is renamed once it is whole; "distributed": all ranks save by
    torch.distributed.checkpoint. With ``stop_at``, rank 0 tells the test of each update, and of each save that is
    written and does not have its name yet; after so many lines it stops, to be killed, and its peer waits for it.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(90, 6), torch.nn.Linear(6, 90)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    pipeline = odb.Pipeline(odb.Shards(f"{shards}/part-*.tar"), letters)
    with odb.Loader(pipeline, budget=odb.Budget(tokens=128), workers=workers, **SETTINGS) as loader:
        run = Run(folder, kind, stop_at, model, optimizer, loader)
        run.load()
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
                run.updates += 1
                run.tell(f"update {run.updates}")
                if run.updates % SAVE_EVERY == 0:
                    run.save()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "final.pt")


class Run:
    """Saves and loads everything, in one of the two ways."""

    def __init__(self, folder: Path, kind: str, stop_at: int, model: Any, optimizer: Any, loader: odb.Loader) -> None:
        self.folder, self.kind, self.lines_left = folder, kind, stop_at
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.updates = 0

    def tell(self, line: str) -> None:
        if dist.get_rank() == 0 and self.lines_left:
            line_to_test().send(line)
            self.lines_left -= 1
            while not self.lines_left:
                signal.pause()

    def save(self) -> None:
        path = self.folder / f"checkpoint-{self.updates:06d}"
        unfinished = path.with_suffix(".unfinished")
        if self.kind == "file":
            states: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(states, self.loader.state_dict())
            if dist.get_rank() == 0:
                trained = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save({**trained, "loader": states, "updates": self.updates}, unfinished)
        else:
            checkpoint.save(self._parts(), checkpoint_id=unfinished)
        dist.barrier()
        self.tell(f"saved {self.updates}")
        if dist.get_rank() == 0:
            os.rename(unfinished, path)

    def load(self) -> None:
        paths = sorted(self.folder.glob("checkpoint-??????"))
        if not paths:
            return
        self.updates = int(paths[-1].name.rpartition("-")[2])
        if self.kind == "file":
            saved = torch.load(paths[-1], weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.loader.load_state_dict(saved["loader"][dist.get_rank()])
        else:
            parts = self._parts()
            checkpoint.load(parts, checkpoint_id=paths[-1])
            self.model.load_state_dict(parts["model"])
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": parts["state"], "param_groups": groups})

    def _parts(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        # Loading fills tensors in place, so a fresh optimizer needs some to fill.
        momentum = {n: {"momentum_buffer": torch.zeros_like(p)} for n, p in enumerate(self.model.parameters())}
        return {
            "model": self.model.state_dict(),
            "state": state or momentum,
            f"loader of rank {dist.get_rank()}": self.loader,
        }
