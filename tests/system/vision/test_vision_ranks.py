"""Mixed modality over real ranks: one with images, one without; no hang, and the gradient of a single process.

Switched off (``mixed_modality="off"``), the DDP case fails: the text-only rank leaves the vision encoder's parameters
without a gradient, and its reducer waits for them. A rank that idles with images beside one that trains on text makes
the FSDP2 case fail: the collectives of the two no longer match.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_support import run_ranks, values
from test_vision_batches import losses, tiny
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from vision_chats import Chats, pipeline

import odb_stream as odb
from odb_stream.batching.cost import Footprint
from odb_stream.config import World
from odb_stream.nodes.collate import padded
from odb_stream.prepare.records import prepare_for

CHATS = (Chats(9, least=1), Chats(14, text_only=True))


def wrapped(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model as a training job holds it, in float64, and the bare one with the same weights."""
    bare = tiny("qwen3_vl").double()
    state = {name: value.clone() for name, value in bare.state_dict().items()}
    model = tiny.__wrapped__("qwen3_vl").double()
    model.load_state_dict(state)
    if kind == "ddp":
        return DistributedDataParallel(model), bare
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in [*model.model.visual.blocks, *model.model.language_model.layers]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), bare


def as_double(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in batch.items()}


def single_process_gradient(bare: torch.nn.Module, members: list[tuple[int, int]], supervised: int) -> list[Any]:
    """The gradient over (rank, index) of all samples of a step, each run alone."""
    total = torch.zeros((), dtype=torch.float64)
    for rank, index in members:
        source = pipeline(CHATS[rank], sharded=True)
        record = source.source.reading(World(), seed=0, epoch=0).fetch_all([(odb.SampleRef(0, 0, index, -1), 0)])[0]
        prepare = prepare_for(source, 0)
        sample = prepare.record(record)
        if sample.images:
            sample = sample._replace(pixels=prepare.decode(0, sample.images))
        batch = as_double(padded([sample], Footprint("padded", odb.Budget(4000)), 0))
        labels = batch.pop("labels")
        total = total + losses(bare(**batch).logits, labels)
    bare.zero_grad()
    (total / supervised).backward()
    return [parameter.grad for parameter in bare.parameters()]


def train(kind: str, layout: str) -> dict[str, float]:
    rank = dist.get_rank()
    model, bare = wrapped(kind)
    mixed, worst, steps, padded_over = 0, 0.0, 0, 0
    settings: dict[str, Any] = {"budget": odb.Budget(300), "window": 8, "lookahead": 4, "layout": layout}
    settings["mixed_modality"] = "dummy" if kind == "ddp" else "auto"
    settings["rebalance"] = False  # else groups of like cost, so of one kind, meet in a step
    with odb.Loader(pipeline(CHATS[rank], sharded=True), **settings) as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            steps += 1
            padded_over += batch["input_ids"].numel() > 300
            labels = batch.pop("labels")
            logits = model(**as_double(batch)).logits
            local = losses(logits, labels) / max(int((labels[:, 1:] != -100).sum()), 1)
            (local * step.loss_scale).backward()
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, (step.has_images, [(ref.shard, ref.index) for ref in step.refs]))
            mixed += len({has for has, _ in everyone}) > 1
            members = [member for _, own in everyone for member in own]
            expected = single_process_gradient(bare, members, step.global_supervised_tokens)
            for parameter, theirs in zip(model.parameters(), expected, strict=True):
                mine = parameter.grad
                if mine is None and theirs is None:  # no rank had an image
                    continue
                mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
                theirs = torch.zeros_like(mine) if theirs is None else theirs
                worst = max(worst, float((mine - theirs).abs().max()))
                parameter.grad = None
    return {"mixed": mixed, "worst": worst, "steps": steps, "over": padded_over}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layout"), [("ddp", "padded"), ("ddp", "packed"), ("fsdp2", "padded")])
def test_a_rank_without_images_keeps_up_and_changes_nothing(kind, layout):
    first, second = values(run_ranks(train, 2, kind, layout, deadline=240.0))
    assert first["steps"] == second["steps"] > 3
    assert first["mixed"] >= 1
    assert max(first["worst"], second["worst"]) < 1e-6
    assert first["over"] == second["over"] == 0
