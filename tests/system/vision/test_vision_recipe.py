"""The vision recipe over its demo shards: every chat once, equal to the transformers processor, in both layouts.

And ``run --train`` on it: a tiny Qwen3-VL takes its batches, and the loss falls.
"""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import vision_support

import odb_stream as odb
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import START
from odb_stream.stages import ExpandVisualTokens, FixedTokens, RandomResize
from odb_stream.tiny_model import TinyTrainer, tiny_qwen3_vl

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "pipelines"))

import vision_chat  # noqa: E402 - found by the line before


@cache
def processor():
    return vision_chat.load_processor(str(ROOT / "shards" / "vision" / "processor"))


@cache
def plain() -> odb.Pipeline:
    """The recipe's pipeline without its augmentation."""
    whole = vision_chat.build()
    kept = [stage for stage in whole.stages if not isinstance(stage, RandomResize)]
    assert len(kept) == len(whole.stages) - 1
    return odb.Pipeline(whole.source, *kept)


@cache
def records() -> list:
    return list(plain().source.reading(odb.World(), seed=0, epoch=0).records(START))


def reference(record) -> dict:
    """What the processor gives for the chat and the images of a record."""
    messages = json.loads(record.members["json"])["messages"]
    files = iter(data for name, data in record.members.items() if name != "json")
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    named = [part.get("image") for part in parts if part["type"] == "image"]
    images = [next(files) if name is None else record.members[name] for name in named]
    return vision_support.processed(processor(), messages, images)


def spells_a_mark(record) -> bool:
    """Whether a text spells a special token; the processor takes it for one, the recipe does not."""
    return record.key.startswith("spelled")


@pytest.mark.slow
def test_the_whole_demo_equals_the_processor():
    prepare = prepare_for(plain(), seed=0)
    compared = 0
    for record in records():
        if spells_a_mark(record):
            continue
        given, own = reference(record), prepare.record(record)
        assert own.input_ids.tolist() == given["input_ids"][0].tolist(), record.key
        assert own.token_types.tolist() == given["mm_token_type_ids"][0].tolist(), record.key
        if own.images:
            assert [image.grid for image in own.images] == [tuple(grid) for grid in given["image_grid_thw"].tolist()]
            assert np.array_equal(prepare.decode(0, own.images).pixels(), given["pixel_values"]), record.key
        compared += 1
    assert compared > 380


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_chat_comes_out_once(layout):
    budget = odb.Budget(tokens=2_048, patches=4_096)
    refs = []
    with odb.Loader(vision_chat.build(), budget=budget, layout=layout, window=128) as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            refs += step.refs
            assert batch["input_ids"].numel() <= 2_048
            patches = int(batch["image_grid_thw"].prod(dim=1).sum()) if step.has_images else 0
            assert len(batch.get("pixel_values", ())) == patches <= 4_096
        report = loader.report()
    assert len(refs) == len(set(refs)) == report["emitted"] == 400
    assert report["dropped"] == {}


def test_a_spelled_placeholder_binds_to_no_image():
    spelled = [record for record in records() if spells_a_mark(record)]
    assert spelled
    for record in spelled:
        own = prepare_for(plain(), seed=0).record(record)
        assert int(own.token_types.sum()) == sum(image.features for image in own.images)
        assert len(own.images) == len(record.members) - 1


def test_augmentation_changes_with_the_epoch_alone():
    prepare = prepare_for(vision_chat.build(), seed=0)
    large = [record for record in records() if record.key.startswith(("one-shape", "chart"))][:20]
    first, again, later = ([prepare.record(replace(r, epoch=epoch)).length for r in large] for epoch in (0, 0, 1))
    assert first == again != later


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(odb.ConfigError, match="gone"):
        vision_chat.build(processor=str(tmp_path / "gone"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_training_on_images_makes_the_loss_fall(tmp_path, layout):
    path = tmp_path / "report.json"
    options = ["--train", "--budget", "512", "--steps", "30", "--layout", layout, "--report", str(path)]
    command = [sys.executable, "-m", "odb_stream.cli.main", "run", str(ROOT / "pipelines" / "vision_chat.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    losses = report["loss"]
    assert len(losses) == report["steps"] == 30
    assert losses[0] == pytest.approx(6.6, abs=0.3)  # the logarithm of the vocabulary
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_the_model_fits_what_the_processor_makes_of_images():
    for family, patch in (("qwen3_vl", 16), ("qwen2_vl", 14)):
        expand = ExpandVisualTokens(vision_support.processor(family))
        config = tiny_qwen3_vl(400, 0, expand).config
        assert config.vision_config.patch_size == patch
        assert config.image_token_id == vision_support.backend().token_to_id("<|image_pad|>")
        assert config.vision_start_token_id == vision_support.backend().token_to_id("<|vision_start|>")
        assert config.text_config.use_cache is False
        assert 300_000 < TinyTrainer(400, 0, expand).parameters < 600_000


def test_another_family_of_images_is_refused():
    expand = ExpandVisualTokens(vision_support.processor("qwen3_vl"), family=FixedTokens(4, (8, 8)))
    with pytest.raises(odb.ConfigError, match="FixedTokens"):
        TinyTrainer(400, 0, expand)
