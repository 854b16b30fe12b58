"""Batches with images: each sample is alone in its row or stretch, in both layouts, for three model families."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from vision_chats import Chats, pipeline
from vision_support import FAMILIES, backend, processor

import odb_stream as odb
from odb_stream import stages

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


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )


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
        separate = separate + losses(one, labels)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pair = [
        torch.autograd.grad(loss / info.supervised_tokens, parameters, allow_unused=True)
        for loss in (losses(together, batch["labels"]), separate)
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
