"""A training run that saves as it goes: ``train_and_save.py FOLDER SHARDS RANK RANKS ATTEMPT KIND WORKERS``.

Trains a small model in float64 over two epochs, accumulating two steps an update, and saves model, optimizer and loader
after every third update. By KIND, "file": rank 0 into one file that is renamed when it is whole; "distributed": all
ranks by torch.distributed.checkpoint. When started again it goes on from the last save.

Each update is told on standard output, and rank 0 tells each save that is written and has not got its name yet.
"""

import os
import sys
from pathlib import Path
from typing import Any

EPOCHS = 2
SAVE_EVERY = 3
SETTINGS = {"window": 24, "lookahead": 6, "grad_accum": 2, "seed": 5}


def letters(sample: Any) -> dict[str, Any]:
    """One token a letter, cut at a drawn place."""
    from odb_stream.seeds import generator

    text = sample["text"][: int(generator(sample, "cut").integers(4, 61))]
    return {"input_ids": [ord(letter) % 90 for letter in text]}


def main(folder: str, shards: str, rank: int, ranks: int, attempt: str, kind: str, workers: int) -> None:
    import torch
    import torch.distributed as dist

    import odb_stream as odb

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{attempt}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(90, 6), torch.nn.Linear(6, 90)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    pipeline = odb.Pipeline(odb.Shards(f"{shards}/*/shard-*.tar"), letters)
    with odb.Loader(pipeline, budget=odb.Budget(tokens=128), workers=workers, **SETTINGS) as loader:
        save = Saving(Path(folder), kind, model, optimizer, loader)
        save.load()
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
                    parameter.grad /= ranks
                optimizer.step()
                optimizer.zero_grad()
                save.updates += 1
                print(f"update {save.updates}", flush=True)
                if save.updates % SAVE_EVERY == 0:
                    save.save()
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/final.pt")
    dist.destroy_process_group()


class Saving:
    """Saves and loads everything, in one of the two ways."""

    def __init__(self, folder: Path, kind: str, model: Any, optimizer: Any, loader: Any) -> None:
        self.folder, self.kind = folder, kind
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.updates = 0

    def save(self) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as checkpoint

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
        if dist.get_rank() == 0:
            print(f"saved {self.updates}", flush=True)
            os.rename(unfinished, path)

    def load(self) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as checkpoint

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
        import torch
        import torch.distributed as dist

        parameters = list(self.model.parameters())
        state = self.optimizer.state_dict()["state"]
        momentum = {n: {"momentum_buffer": torch.zeros_like(p)} for n, p in enumerate(parameters)}
        return {
            "model": self.model.state_dict(),
            "state": state or momentum,
            f"loader of rank {dist.get_rank()}": self.loader,
        }


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], given[1], int(given[2]), int(given[3]), given[4], given[5], int(given[6]))
