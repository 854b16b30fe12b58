"""ExpandVisualTokens: as many tokens as the model makes features, whatever the image's size."""

import math
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from vision_support import PLACE, backend, encoded, image_file, members, picture, processor, sample, through, turn
from visual_pipelines import CHAT, END, FILES, PAD, START, expanded, image, pipeline

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import IGNORED_LABEL
from odb_stream.stages import (
    BadImage,
    ExpandVisualTokens,
    FixedTokens,
    RandomCrop,
)

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.mark.parametrize("family", FAMILIES)
@given(size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)))
def test_the_grid_is_that_of_the_image_processor(family, size):
    """From the size alone, as the image processor resizes: checked against its own count and its own rule."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    images = processor(family).image_processor
    if max(size) / min(size) > 200:
        with pytest.raises(BadImage, match="image_aspect_ratio"):
            ExpandVisualTokens(processor(family)).family.measure(*size)
        return
    limits = images.size
    factor = images.patch_size * images.merge_size
    height, width = smart_resize(size[1], size[0], factor, limits["shortest_edge"], limits["longest_edge"])
    grid, features = ExpandVisualTokens(processor(family)).family.measure(*size)
    assert grid == (1, height // images.patch_size, width // images.patch_size)
    assert features * images.merge_size**2 == math.prod(grid) == images.get_number_of_image_patches(size[1], size[0])


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (13, 2600), (28, 28), (999, 5), (640, 480)])
def test_pixels_have_exactly_the_measured_rows(size):
    stage = ExpandVisualTokens(processor())
    grid, _ = stage.family.measure(*size)
    out = processor().image_processor(images=[picture(*size)], return_tensors="np")
    assert tuple(out["image_grid_thw"][0].tolist()) == grid
    pixels = stage.pixels(picture(*size), grid)
    assert (pixels.dtype, pixels.shape) == (np.float32, (math.prod(grid), 3 * 2 * 14 * 14))
    assert np.array_equal(pixels, out["pixel_values"])


def test_pixels_of_another_grid_than_counted():
    stage = ExpandVisualTokens(processor())
    grid, _ = stage.family.measure(60, 40)
    assert grid == (1, 4, 6)
    with pytest.raises(
        StageError, match=r"gives \(1, 6, 4\) patches, but \(1, 4, 6\) were counted: a transform's apply"
    ):
        stage.pixels(picture(40, 60), grid)


def test_the_expansion():
    out = expanded(image_file(60, 40), image_file(90, 90))
    ids, labels, types = out["input_ids"], out["labels"], out["mm_token_type_ids"]
    first, second = out["images"]
    assert [(image.grid, image.features) for image in (first, second)] == [((1, 4, 6), 6), ((1, 6, 6), 9)]
    assert (ids == PAD).sum() == 15 == types.sum()
    assert np.array_equal(types, ids == PAD)
    assert (labels[ids == PAD] == IGNORED_LABEL).all()
    text = backend().decode(ids[labels != IGNORED_LABEL].tolist(), skip_special_tokens=False)
    assert text == "a cat<|im_end|>"
    assert np.array_equal(labels[labels != IGNORED_LABEL], ids[labels != IGNORED_LABEL])
    assert {array.dtype for array in (ids, labels, types, out["rope"])} == {np.dtype(np.int32)}
    assert out["rope"].shape == (3, len(ids))


def test_no_loss_on_image_tokens_of_an_answer():
    out = expanded(image_file(), chat=[turn("user", "draw"), turn("assistant", "see", None)])
    assert (out["labels"][out["input_ids"] == PAD] == IGNORED_LABEL).all()
    assert (out["labels"] == START).sum() == (out["labels"] == END).sum() == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_without_images_carry_the_same_fields(family):
    out = expanded(family=family)
    length = len(out["input_ids"])
    assert out["mm_token_type_ids"].tolist() == [0] * length
    assert out["rope"].tolist() == [list(range(length))] * 3
    assert "images" not in out


def test_spelled_placeholders_are_text():
    out = expanded(
        image_file(),
        chat=[turn("user", "<|image_pad|>", None, "<|vision_start|><|image_pad|>"), turn("assistant", "<|image_pad|>")],
    )
    assert (out["input_ids"] == PAD).sum() == 6
    assert (out["input_ids"] == START).sum() == 1


@pytest.mark.parametrize("size", [(1, 201), (3000, 14)])
def test_an_extreme_ratio_is_a_drop(size):
    out = expanded(FILES[0], image_file(*size))
    assert out.reason == "image_aspect_ratio"
    assert f"image 1.png: {size[0]} x {size[1]} pixels" in out.detail


def test_an_extreme_ratio_can_come_from_a_crop():
    stages = pipeline()
    stages.insert(1, RandomCrop(scale=(0.001, 0.001), ratio=(400, 400)))
    file = encoded(Image.new("L", (3000, 3000)))
    assert through(stages, sample(messages=CHAT, **members(*[file] * 4))).reason == "image_aspect_ratio"


@pytest.mark.parametrize(
    ("ids", "images", "words"),
    [
        ([1, PAD, 2], [], "1 placeholders '<|image_pad|>' in the tokens, but 0 images"),
        ([1, 2], [image()], "0 placeholders '<|image_pad|>' in the tokens, but 1 images"),
        ([PAD, PAD, 2], [image()], "2 placeholders '<|image_pad|>' in the tokens, but 1 images"),
    ],
)
def test_placeholders_must_be_as_many_as_images(ids, images, words):
    import re

    with pytest.raises(StageError, match=f"ExpandVisualTokens, {PLACE}: " + re.escape(words)):
        ExpandVisualTokens(processor())(sample(input_ids=ids, labels=ids, images=images))


def test_the_order_of_stages():
    stage = ExpandVisualTokens(processor())
    with pytest.raises(StageError, match=f"{PLACE}: no input_ids: put Tokenize before it"):
        stage(sample(text="a"))
    with pytest.raises(StageError, match="not measured: put MeasureImages first"):
        stage(sample(input_ids=[PAD, 1], images=[image_file()]))
    with pytest.raises(StageError, match="expanded already"):
        stage(stage(sample(input_ids=[1, PAD, 1], images=[image()])))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ExpandVisualTokens(processor().tokenizer), "the image processor is NoneType, not that of Qwen2-VL"),
        (lambda: ExpandVisualTokens(processor(), family=3), "family must be a VisualFamily"),
        (
            lambda: ExpandVisualTokens(processor(), family=FixedTokens(5, (8, 6), image_token="<pic>")),
            "has no token '<pic>'",
        ),
        (lambda: FixedTokens(0, (8, 6)), "FixedTokens.count is 0"),
        (lambda: FixedTokens(1, (8, 0)), "FixedTokens.size is 0"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_an_image_processor_that_does_not_resize():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    fixed = SimpleNamespace(tokenizer=processor().tokenizer, image_processor=Qwen2VLImageProcessorPil(do_resize=False))
    with pytest.raises(ConfigError, match="do_resize"):
        ExpandVisualTokens(fixed)


def test_an_image_processor_of_another_rule():
    class Other(type(processor().image_processor)):
        def get_number_of_image_patches(self, height, width, images_kwargs=None):
            return 4 + super().get_number_of_image_patches(height, width, images_kwargs)

    other = SimpleNamespace(tokenizer=processor().tokenizer, image_processor=Other())
    with pytest.raises(StageError, match=r"counts .* patches for 60 x 40 pixels, but its sides should be"):
        ExpandVisualTokens(other)(sample(input_ids=[1, PAD, 2], images=[image()]))


def test_it_travels_to_spawned_workers(tmp_path):
    """Only what holds a transformers image processor imports transformers there, when it arrives."""
    qwen, fixed = tmp_path / "qwen", tmp_path / "fixed"
    qwen.write_bytes(pickle.dumps(ExpandVisualTokens(processor())))
    fixed.write_bytes(pickle.dumps((pipeline()[:3], ExpandVisualTokens(processor(), family=FixedTokens(5, (8, 6))))))
    script = (
        "import pickle, sys, odb_stream.stages\n"
        "pickle.load(open(sys.argv[2], 'rb')); print('transformers' in sys.modules)\n"
        "stage = pickle.load(open(sys.argv[1], 'rb')); print('transformers' in sys.modules)\n"
        "print(stage.family.measure(60, 40))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, qwen, fixed], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[:3] == ["False", "True", "((1, 4, 6), 6)"]
