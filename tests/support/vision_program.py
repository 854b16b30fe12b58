"""A plain loop over chats with images, under torchrun: ``vision_program.py FOLDER STEPS``; goes on from the last save.

Trains a tiny Qwen3-VL with DDP on the demo shards, saves everything after every third update, and at the end measures
the loss on one shard. Tells each loss on standard output and all of them, with the evaluation, in FOLDER/report.json.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import odb_stream as odb
from odb_stream.adapters.checkpoint import load, save
from odb_stream.adapters.torch import Meter, evaluate, whole_windows
from odb_stream.stages.visual import expander
from odb_stream.tiny_model import tiny_qwen3_vl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "pipelines"))

import vision_chat  # noqa: E402 - found by the line before

SAVE_EVERY = 3
SMALL = {"window": 24, "lookahead": 6, "seed": 3, "mixed_modality": "dummy", "grad_accum": 2}


def held_out() -> odb.Pipeline:
    """The last shard, in the order of its file, without augmentation."""
    whole = vision_chat.build()
    kept = [stage for stage in whole.stages if type(stage).__name__ != "RandomResize"]
    shard = ROOT / "shards" / "vision" / "chat-000003.tar"
    return odb.Pipeline(odb.Shards(str(shard), shuffle=False), *kept)


def main(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pipeline = vision_chat.build()
    model = tiny_qwen3_vl(4096, 0, expander(pipeline.all_stages))
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    budget = odb.Budget(tokens=3000)
    with odb.Loader(pipeline, budget=budget, **SMALL) as loader:
        parts = {"model": model, "optimizer": optimizer}
        loaded = load(folder / "saved", loader, shared=parts)
        losses: list[float] = loaded.notes["losses"] if loaded else []
        meter = Meter(budget=budget.tokens)
        for batch in whole_windows(loader, SMALL["grad_accum"]):
            step = odb.pop_step(batch)
            loss = trained(**{"use_cache": False, **batch}).loss
            (loss * step.loss_scale).backward()
            meter.add(step, loss)
            if not step.accum_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            losses.append(meter.read()["loss"])
            if dist.get_rank() == 0:
                print(f"update {len(losses)} loss {losses[-1]:.6f}", flush=True)
            if len(losses) % SAVE_EVERY == 0:
                save(folder / "saved", loader, step=len(losses), shared=parts, notes={"losses": losses}, keep=1)
            if len(losses) == steps:
                break
    with odb.Loader(held_out(), budget=budget, **{**SMALL, "grad_accum": 1}) as loader:
        evaluation = evaluate(model, loader)
    if dist.get_rank() == 0:
        (folder / "report.json").write_text(json.dumps({"loss": losses, "evaluation": evaluation}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
