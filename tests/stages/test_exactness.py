"""Without augmentation a model gets what transformers gives it, bit for bit; M-RoPE positions are the models' own."""

import io
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_support import CHATS, FAMILIES, backend, encoded, exif, image_parts_of, members, picture, processor, turn

from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import IGNORED_LABEL, PreparedSample, Record, SampleRef
from odb_stream.stages import ChatTemplate, ExpandVisualTokens, MeasureImages, Tokenize
from odb_stream.stages.families import QwenVision
from odb_stream.stages.images.files import open_image
from odb_stream.stages.images.patches import PatchTable
from odb_stream.stages.rope import rope_positions

START, END, PAD = (backend().token_to_id(token) for token in ("<|im_start|>", "<|im_end|>", "<|image_pad|>"))


FILES = [
    encoded(picture(60, 40)),
    encoded(picture(33, 150, seed=1), "JPEG"),
    encoded(picture(320, 200, seed=2), "JPEG", progressive=True, quality=60),
    encoded(picture(1, 1, seed=3)),
    encoded(picture(7, 700, seed=4), "WEBP"),
    encoded(picture(64, 64, mode="RGBA", seed=5)),
    encoded(picture(50, 70, mode="LA", seed=6)),
    encoded(picture(40, 30).convert("L"), "JPEG"),
    encoded(picture(40, 30).convert("CMYK"), "JPEG"),
    encoded(picture(40, 30).quantize(16), "GIF", transparency=2),
    encoded(picture(40, 30).convert("1")),
    encoded(picture(90, 40, seed=7), "JPEG", exif=exif(6)),
    encoded(picture(90, 40, seed=7), "JPEG", exif=exif(3)),
]


def ours(family: str, messages, files) -> tuple[PreparedSample, np.ndarray | None]:
    """The prepared sample and its pixels."""
    made = processor(family)
    expand = ExpandVisualTokens(made)
    stages = (MeasureImages(), ChatTemplate(made), Tokenize(made), expand)
    fields = {"messages": messages, **members(*files)}
    record = Record(SampleRef(0, 0, 0, -1), "k", "s")
    out = Prepare((SourceStages(lambda record: fields, stages),), seed=0).record(record)
    assert isinstance(out, PreparedSample), out
    pixels = [expand.pixels(open_image(image.data), image.grid) for image in out.images]
    return out, np.concatenate(pixels) if pixels else None


def theirs(family: str, messages, files):
    """What transformers gives for the same chat and the upright images as Pillow opens them."""
    made = processor(family)
    text = made.apply_chat_template(messages, tokenize=False)
    images = [ImageOps.exif_transpose(Image.open(io.BytesIO(file))) for file in files]
    return made(text=[text], images=images or None, return_tensors="np")


def labels_of(ids: list[int]) -> list[int]:
    """Each answer from the end of its header to its end token, without image tokens, read off the ids alone."""
    header = [START, *backend().encode("assistant\n").ids]
    labels, place = [IGNORED_LABEL] * len(ids), 0
    while place < len(ids):
        if ids[place : place + len(header)] == header:
            place += len(header)
            while place < len(ids):
                labels[place] = ids[place] if ids[place] != PAD else IGNORED_LABEL
                if ids[place] == END:
                    break
                place += 1
        place += 1
    return labels


def require_equal(family: str, messages, files) -> None:
    out, pixels = ours(family, messages, files)
    reference = theirs(family, messages, files)
    assert out.input_ids.tolist() == reference["input_ids"][0].tolist()
    assert out.token_types.tolist() == reference["mm_token_type_ids"][0].tolist()
    assert out.labels.tolist() == labels_of(reference["input_ids"][0].tolist())
    assert out.supervised > 0
    if not files:
        assert (pixels, out.images) == (None, ())
        assert "pixel_values" not in reference
        return
    assert [image.grid for image in out.images] == [tuple(grid) for grid in reference["image_grid_thw"].tolist()]
    assert pixels.dtype == reference["pixel_values"].dtype == np.float32
    assert np.array_equal(pixels, reference["pixel_values"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CHATS)
def test_the_same_chat(family, name):
    require_equal(family, CHATS[name], FILES[: image_parts_of(CHATS[name])])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", range(len(FILES)))
def test_the_same_image(family, number):
    require_equal(family, [turn("user", None, "what is it?"), turn("assistant", "a cat")], [FILES[number]])


TEXTS = st.sampled_from(["a", "the cat ", "\n", "what is in this picture?", "你好", " and"])
USER = st.lists(st.one_of(TEXTS, st.integers(0, len(FILES) - 1)), min_size=1, max_size=5)


@pytest.mark.parametrize("family", FAMILIES)
@given(turns=st.lists(st.tuples(USER, TEXTS), min_size=1, max_size=4), system=st.sampled_from([None, "be brief"]))
@settings(max_examples=40)
def test_random_chats(family, turns, system):
    messages, files = [], []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for parts, answer in turns:
        messages.append(turn("user", *[part if isinstance(part, str) else None for part in parts]))
        messages.append(turn("assistant", answer))
        files += [FILES[part] for part in parts if not isinstance(part, str)]
    require_equal(family, messages, files)


def test_images_in_answers():
    """Qwen2-VL's template renders them; there is no loss on what stands for the image."""
    require_equal(
        "qwen2_vl",
        [turn("user", "draw"), turn("assistant", "see", None, "so"), turn("user", None), turn("assistant", "a")],
        FILES[:2],
    )


# The table of patches: equal to the image processor, and left aside where that is not known.

LIMITS = {"shortest_edge": 4_096, "longest_edge": 65_536}


def image_processor(**settings) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(size=LIMITS, **settings)


def require_equal_pixels(images: Qwen2VLImageProcessorPil, image) -> None:
    family, made_of = QwenVision(images), images(images=[image], return_tensors="np")
    pixels, expected = family.raster(image).pixels(), made_of["pixel_values"]
    assert family.measure(*image.size)[0] == tuple(made_of["image_grid_thw"][0].tolist())
    assert pixels.dtype == expected.dtype == np.float32
    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, expected)
    assert np.array_equal(family.pixels(image), expected)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
@given(width=st.integers(1, 300), height=st.integers(1, 300), seed=st.integers(0, 9))
@example(width=200, height=1, seed=0)
@example(width=1, height=200, seed=0)
@settings(max_examples=60)
def test_every_size_gives_the_same(family, width, height, seed):
    if max(width, height) / min(width, height) <= 200:
        require_equal_pixels(processor(family).image_processor, picture(width, height, seed=seed))


SETTINGS = {
    "patches of 16": {"patch_size": 16},
    "merge 1": {"merge_size": 1},
    "merge 3": {"merge_size": 3, "patch_size": 8},
    "one frame": {"temporal_patch_size": 1},
    "own mean": {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.7, 1 / 3]},
    "not normalized": {"do_normalize": False},
    "not rescaled": {"do_rescale": False},
    "neither": {"do_rescale": False, "do_normalize": False},
    "own factor": {"rescale_factor": 1 / 127},
    "bilinear": {"resample": 2},
    "lanczos": {"resample": 1},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_gives_the_same(settings):
    for size in ((300, 200), (20, 90)):
        require_equal_pixels(image_processor(**settings), picture(*size, seed=size[0]))


class Brighter(Qwen2VLImageProcessorPil):
    """A processor of the user's own."""

    def rescale(self, image, scale, **settings):
        return super().rescale(image, scale, **settings) * 2


class Nearest(Qwen2VLImageProcessorPil):
    """What a version that resizes by another rule would be."""

    def resize(self, image, size, resample, factor, **settings):
        return super().resize(image, size, 0, factor, **settings)


Nearest.__name__ = Qwen2VLImageProcessorPil.__name__


@pytest.mark.parametrize("kind", [Brighter, Nearest])
def test_a_processor_that_computes_something_else_is_asked_itself(kind):
    images = kind(size=LIMITS)
    assert PatchTable.of(images) is None
    family = QwenVision(images)
    image = picture(90, 60)
    assert family.raster(image) is None
    assert np.array_equal(family.pixels(image), images(images=[image], return_tensors="np")["pixel_values"])


def test_a_raster_travels_in_few_bytes():
    raster = QwenVision(image_processor()).raster(picture(256, 256))
    packed = pickle.dumps(raster, 5)
    assert len(packed) < raster.array.nbytes + 8_000 < raster.pixels().nbytes / 6
    assert np.array_equal(pickle.loads(packed).pixels(), raster.pixels())


# M-RoPE.

VISION = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "in_channels": 3}
TEXT = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
}  # fmt: skip


@cache
def model(family: str):
    """A tiny model of the family with random weights."""
    import transformers

    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
    config = getattr(transformers, f"{name}Config")(
        vision_config={**VISION, "out_hidden_size": 32, "deepstack_visual_indexes": [0]}, text_config=TEXT
    )
    return getattr(transformers, f"{name}Model")(config)


@st.composite
def types_and_grids(draw):
    """Token types and grids of a chat with texts of any length between the images (at least one token)."""
    grids = draw(st.lists(st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 9)), max_size=5))
    texts = [draw(st.integers(0, 9)), *[draw(st.integers(1, 9)) for _ in grids[1:]], draw(st.integers(0, 9))]
    types = [0] * texts[0]
    for (time, height, width), text in zip(grids, texts[1:], strict=False):
        types += [1] * (time * height * width) + [0] * text
    return np.array(types or [0], dtype=np.int32), [(time, 2 * height, 2 * width) for time, height, width in grids]


@pytest.mark.parametrize("family", FAMILIES)
@given(chat=types_and_grids())
@settings(max_examples=80)
def test_positions_are_the_models_own(family, chat):
    types, grids = chat
    row = torch.tensor(types)[None]
    expected, _ = model(family).get_rope_index(
        torch.ones_like(row), mm_token_type_ids=row, image_grid_thw=torch.tensor(grids) if grids else None
    )
    found = rope_positions(types, grids, 2)
    assert (found.dtype, found.shape) == (np.int32, (3, len(types)))
    assert found.tolist() == expected[:, 0].tolist()


@pytest.mark.parametrize(
    ("types", "grids", "rows"),
    [
        (
            [0, 0, 1, 1, 1, 1, 1, 1, 0],
            [(1, 4, 6)],
            [[0, 1, 2, 2, 2, 2, 2, 2, 5], [0, 1, 2, 2, 2, 3, 3, 3, 5], [0, 1, 2, 3, 4, 2, 3, 4, 5]],
        ),
        ([0] * 4, [], [[0, 1, 2, 3]] * 3),
        ([1] * 3, [(1, 2, 2), (1, 2, 4)], [[0, 1, 1], [0, 1, 1], [0, 1, 2]]),
    ],
    ids=["by hand", "text alone", "images side by side"],
)
def test_examples_of_positions(types, grids, rows):
    assert rope_positions(np.array(types), grids, 2).tolist() == rows


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ([0, 1, 1, 0], "needs 6 image tokens"),
        ([1, 1, 0, 1, 1, 1, 1], "needs 6 image tokens in one run"),
        ([1] * 7, "7 image tokens"),
    ],
)
def test_tokens_must_be_those_of_the_grids(types, words):
    with pytest.raises(ValueError, match=words):
        rope_positions(np.array(types), [(1, 4, 6)], 2)
