"""Train a tiny Qwen3 on the demo chats in a plain torch loop: alone, or with DDP under torchrun."""

import argparse
import json
import os
from pathlib import Path

import text_chat
import torch
import torch.distributed as dist
from rich.console import Console
from torch.nn.parallel import DistributedDataParallel

import odb_stream as odb
from odb_stream.adapters.torch import Meter, clip_grad_norm, sync_when_due, to_device
from odb_stream.tiny_model import tiny_qwen3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="updates of the optimizer")
    parser.add_argument("--report", type=Path, help="write losses and the number of samples to this JSON file")
    parser.add_argument("--layout", choices=["padded", "packed"], default="padded")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    options = parser.parse_args()
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:  # under torchrun
        dist.init_process_group("nccl" if device != "cpu" else "gloo")
    model: torch.nn.Module = tiny_qwen3(4096, seed=0).to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    settings = {"layout": options.layout, "seed": 1, "grad_accum": options.accumulate}
    meter, losses, emitted = Meter(budget=4096, device=device), [], 0
    with odb.Loader(text_chat.build(), budget=odb.Budget(tokens=4096), **settings) as loader:
        while len(losses) < options.steps:  # each `for` is an epoch
            for batch in loader:
                step = odb.pop_step(batch)
                with sync_when_due(model, step):
                    loss = model(**{"use_cache": False, **to_device(batch, device)}).loss
                    (loss * step.loss_scale).backward()
                meter.add(step, loss)
                emitted += step.global_samples
                if step.accum_last:
                    clip_grad_norm(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(meter.read()["loss"])
                    if len(losses) == options.steps:
                        break
    if not dist.is_initialized() or dist.get_rank() == 0:
        Console().print(f"{len(losses)} updates, {emitted} samples, loss {losses[0]:.3f} to {losses[-1]:.3f}")
        if options.report:
            options.report.write_text(json.dumps({"loss": losses, "emitted": emitted}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
