"""Train a tiny Qwen3 on the demo chats in a plain torch loop: alone, or with DDP under torchrun."""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from text_chat import build

import odb_stream as odb
from odb_stream.adapters.checkpoint import load, save
from odb_stream.adapters.torch import Meter, sync_when_due, to_device
from odb_stream.tiny_model import tiny_qwen3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="updates of the optimizer")
    parser.add_argument("--report", type=Path, help="write losses and the number of samples to this JSON file")
    parser.add_argument("--layout", choices=["padded", "packed"], default="padded")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--output", type=Path, help="folder of checkpoints: resume from the newest, if there is one")
    given = parser.parse_args()
    device = f"cuda:{dist.get_node_local_rank(fallback_rank=0)}" if torch.cuda.is_available() else "cpu"
    model: torch.nn.Module = tiny_qwen3(4096, seed=0).to(device)
    if dist.is_torchelastic_launched():  # by torchrun
        dist.init_process_group()  # NCCL for tensors on GPUs; gloo for others, and for what `save` and `load` exchange
        model = torch.nn.parallel.DistributedDataParallel(model)
    parts = {"model": model, "optimizer": (optimizer := torch.optim.AdamW(model.parameters(), lr=5e-3))}
    with odb.Loader(build(), budget=odb.Budget(4096), layout=given.layout, grad_accum=given.accumulate) as loader:
        loaded = load(given.output, loader, shared=parts) if given.output else None
        done, losses, meter = loaded.step if loaded else 0, [], Meter(budget=4096, device=device)
        while done < given.steps:  # each `for` is an epoch
            for batch in loader:
                step = odb.pop_step(batch)
                with sync_when_due(model, step):
                    loss = model(**{"use_cache": False, **to_device(batch, device)}).loss
                    (loss * step.loss_scale).backward()
                meter.add(step, loss)
                if step.accum_last:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    done += 1
                    losses.append(meter.read()["loss"])
                    Console(quiet=loader.world.rank > 0).print(f"step {done} loss {losses[-1]:.4f}")
                    if given.output and done % 5 == 0:
                        save(given.output, loader, step=done, shared=parts, keep=2)
                    if done == given.steps:
                        break
    if given.report and loader.world.rank == 0:
        given.report.write_text(json.dumps({"loss": losses, "emitted": loader.report()["global"]["emitted"]}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
