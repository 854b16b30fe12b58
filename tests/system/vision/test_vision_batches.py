"""Batches with images: each sample is alone in its row or stretch, in both layouts, for three model families."""

import copy
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_support import run_ranks, values
from ranks_training import losses, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from vision_support import FAMILIES, Chats, backend, pipeline, processor

import odb_stream as odb
from odb_stream import stages
from odb_stream.batching.cost import Footprint
from odb_stream.config import World
from odb_stream.nodes.collate import padded
from odb_stream.prepare.records import prepare_for

IMAGE_ID = backend().token_to_id("<|image_pad|>")
MERGED = 4  # patches a feature
HEADS = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}


@cache
def tiny(family: str) -> torch.nn.Module:
    """A tiny model with a language head, float32, random weights."""
    import transformers

    torch.manual_seed(5)
    tokenizer = processor(family).tokenizer
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "in_channels": 3, "out_hidden_size": 32,
        "intermediate_size": 64, "patch_size": 16 if family == "qwen3_vl" else 14, "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64, "fullatt_block_indexes": [1], "window_size": 112,
    }  # fmt: skip
    if family == "qwen2_vl":
        vision |= {"hidden_size": 32, "mlp_ratio": 2}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
    }  # fmt: skip
    ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for kind, name in [
        ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"),
    ]}  # fmt: skip
    config = getattr(transformers, f"{HEADS[family]}Config")(vision_config=vision, text_config=text, **ids)
    return getattr(transformers, f"{HEADS[family]}ForConditionalGeneration")(config).train()


def batches(family: str, layout: str, dataset=None, **settings) -> list[dict]:
    settings = {"budget": odb.Budget(tokens=400), "window": 8, "lookahead": 4, **settings}
    with odb.Loader(pipeline(dataset or Chats(12), family=family), layout=layout, **settings) as loader:
        return list(loader)


def alone(batch: dict, layout: str) -> list[dict]:
    """The samples of a batch, each as a batch of its own."""
    ids, labels = batch["input_ids"], batch["labels"]
    if layout == "packed":
        spans = [(0, slice(*span)) for span in pairwise(batch["cu_seq_lens_q"].tolist())][: batch["odb_step"].samples]
    else:
        spans = [(row, slice(0, int(mask.sum()))) for row, mask in enumerate(batch["attention_mask"])]
    named = {"input_ids": ids, "labels": labels, "mm_token_type_ids": (ids == IMAGE_ID).long()}
    grids = iter(batch["image_grid_thw"])
    singles, patch = [], 0
    for row, span in spans:
        single: dict = {name: tensor[row, span][None] for name, tensor in named.items()}
        patches, own = MERGED * int(single["mm_token_type_ids"].sum()), []
        while sum(int(grid.prod()) for grid in own) < patches:
            own.append(next(grids))
        if own:
            single["pixel_values"] = batch["pixel_values"][patch : patch + patches]
            single["image_grid_thw"] = torch.stack(own)
        patch += patches
        singles.append(single | {"place": (row, span)})
    return singles


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_batch_equals_separate_runs(family, layout):
    model = tiny(family)
    batch = next(one for one in batches(family, layout) if len(one.get("image_grid_thw", ())) >= 2)
    info, singles = batch["odb_step"], alone(batch, layout)
    inputs = {key: value for key, value in batch.items() if key not in ("odb_step", "labels")}
    together = model(**inputs).logits
    separate = torch.zeros(())
    for single in singles:
        row, span = single.pop("place")
        labels = single.pop("labels")
        one = model(**single, use_cache=False).logits
        assert torch.allclose(together[row, span], one[0], atol=1e-5)
        separate = separate + losses(one, labels, "sum")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pair = [
        torch.autograd.grad(loss / info.supervised_tokens, parameters, allow_unused=True)
        for loss in (losses(together, batch["labels"], "sum"), separate)
    ]
    for mine, theirs in zip(*pair, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_placeholders_equal_features_in_every_batch(layout):
    """Packed rows have four rows of positions, each of which starts at 0 with every sample."""
    for batch in batches("qwen3_vl", layout, Chats(30)):
        placeholders = int((batch["input_ids"] == IMAGE_ID).sum())
        grids = batch.get("image_grid_thw", torch.zeros((0, 3), dtype=torch.int64))
        assert MERGED * placeholders == int(grids.prod(dim=1).sum()) == len(batch.get("pixel_values", ()))
        assert batch["odb_step"].has_images == bool(placeholders)
        if layout == "packed":
            assert batch["position_ids"].shape == (4, *batch["input_ids"].shape)
            assert (batch["position_ids"][:, 0, batch["cu_seq_lens_q"][:-1].long()] == 0).all()
            assert batch["max_length_q"] == int(batch["cu_seq_lens_q"].diff().max())


def test_a_broken_image_leaves_after_planning_and_is_counted():
    dataset = Chats(40, broken=True)
    with odb.Loader(pipeline(dataset), budget=odb.Budget(tokens=400), window=8) as loader:
        found = sorted(ref.index for batch in loader for ref in batch["odb_step"].refs)
        report = loader.report()
    broken = [index for index in range(40) if index % 10 == 5 and index % 3]
    assert found == [index for index in range(40) if index not in broken]
    assert report["dropped"] == {"image_broken": len(broken)}
    assert report["emitted"] == 40 - len(broken)


class RaisesOnPixels(stages.ImageTransform):
    """Plans every image, and cannot change the pixels of one."""

    def plan(self, size, draws):
        return (), size

    def apply(self, image, parameters):
        raise RuntimeError("no pixels today")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_transform_that_raises_while_decoding_names_the_sample(workers):
    recipe = pipeline(Chats(6, least=1), RaisesOnPixels(), shuffle=False)
    with (
        odb.Loader(recipe, budget=odb.Budget(tokens=400), window=8, workers=workers) as loader,
        pytest.raises(odb.StageError, match=r"no pixels today.*Chats.*\(sample [0-5]\).*apply\(\)"),
    ):
        list(loader)


def test_patches_are_a_budget_too():
    for layout in ("packed", "padded"):
        budget = odb.Budget(tokens=2000, patches=120)
        for batch in batches("qwen3_vl", layout, Chats(30), budget=budget, oversize="solo"):
            info = batch["odb_step"]
            assert len(batch.get("pixel_values", ())) <= 120 or info.samples == 1


@pytest.mark.slow
def test_workers_and_memory_bounds_change_no_batch():
    def run(**settings):
        found = []
        for batch in batches("qwen3_vl", "packed", Chats(40, broken=True), **settings):
            info = batch.pop("odb_step")
            found.append((info, {key: v.tolist() if torch.is_tensor(v) else v for key, v in batch.items()}))
        return found

    reference = run()
    assert run(max_bytes=1) == reference
    assert run(workers=2) == reference


def test_a_family_of_fixed_tokens_flows_through_too():
    model = processor("qwen3_vl")
    family = stages.FixedTokens(6, (32, 32), image_token="<|image_pad|>", block=("<|vision_start|>", "<|vision_end|>"))
    source = odb.Pipeline(
        odb.FromDataset(Chats(20)),
        stages.MeasureImages(),
        stages.ChatTemplate(model),
        stages.Tokenize(model),
        stages.ExpandVisualTokens(model, family=family),
    )
    images = 0
    with odb.Loader(source, budget=odb.Budget(tokens=300), window=8) as loader:
        for batch in loader:
            assert "mm_token_type_ids" not in batch
            images += len(batch.get("pixel_values", ()))
            assert int((batch["input_ids"] == IMAGE_ID).sum()) == 6 * len(batch.get("pixel_values", ()))
    assert images == sum(index % 3 for index in range(20))


CHATS = (Chats(9, least=1), Chats(14, text_only=True))


def wrapped(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model as a training job holds it, in float64, and the bare one with the same weights."""
    bare = tiny("qwen3_vl").double()
    model = copy.deepcopy(bare)
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
        total = total + losses(bare(**batch).logits, labels, "sum")
    bare.zero_grad()
    (total / supervised).backward()
    return [parameter.grad for parameter in bare.parameters()]


def train_mixed(kind: str, layout: str) -> dict[str, float]:
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
            local = losses(logits, labels, "sum") / max(int((labels[:, 1:] != -100).sum()), 1)
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
                mine = whole(mine)
                theirs = torch.zeros_like(mine) if theirs is None else theirs
                worst = max(worst, float((mine - theirs).abs().max()))
                parameter.grad = None
    return {"mixed": mixed, "worst": worst, "steps": steps, "over": padded_over}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layout"), [("ddp", "padded"), ("ddp", "packed"), ("fsdp2", "padded")])
def test_a_rank_without_images_keeps_up_and_changes_nothing(kind, layout):
    """One rank with images, one without: no hang, and the gradient of a single process.

    Switched off (``mixed_modality="off"``), the DDP case fails: the text-only rank leaves the vision encoder's
    parameters without a gradient, and its reducer waits for them. A rank that idles with images beside one that trains
    on text makes the FSDP2 case fail: the collectives of the two no longer match.
    """
    first, second = values(run_ranks(train_mixed, 2, kind, layout, deadline=240.0))
    assert first["steps"] == second["steps"] > 3
    assert first["mixed"] >= 1
    assert max(first["worst"], second["worst"]) < 1e-6
    assert first["over"] == second["over"] == 0
