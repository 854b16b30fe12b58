"""ExpandVisualTokens: as many tokens as the model makes features, cuts that split no image, other families."""

import math
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stage_samples import PLACE, sample, through
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from vision_support import FAMILIES, FIXED, backend, encoded, image_file, members, picture, processor, turn

from odb_stream.errors import ConfigError, StageError
from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import IGNORED_LABEL, Drop, PreparedSample, Record, SampleRef
from odb_stream.stages import (
    BadImage,
    ChatTemplate,
    ExpandVisualTokens,
    FixedTokens,
    MeasureImages,
    PlannedImage,
    RandomCrop,
    RandomFlip,
    RandomResize,
    Tokenize,
)
from odb_stream.stages.visual import kept_blocks

START, END, PAD = (backend().token_to_id(token) for token in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))

MARK = "<|vision_start|><|image_pad|><|vision_end|>"

CHAT = [
    turn("user", None, "hm, ", None, "what?"),
    turn("assistant", "a cat and a dog"),
    turn("user", "and", None, None),
    turn("assistant", "a picture"),
]

FILES = [image_file(60, 40), image_file(90, 90), image_file(30, 120), image_file(60, 60)]
IMAGE = PlannedImage("0.png", FILES[0], (60, 40))


def pipeline(family: str = "qwen2_vl", **settings: object) -> list:
    made = processor(family)
    return [MeasureImages(), ChatTemplate(made), Tokenize(made, **settings), ExpandVisualTokens(made)]


def expanded(*files: bytes, chat=None, family: str = "qwen2_vl", **settings: object):
    chat = chat or [turn("user", *[None] * len(files), "what?"), turn("assistant", "a cat")]
    return through(pipeline(family, **settings), sample(messages=chat, **members(*files)))


def ready(stages, **members_) -> PreparedSample:
    fields = {"messages": CHAT, **members(*FILES), **members_}
    record = Record(SampleRef(0, 0, 0, -1), "k", "s", epoch=3)
    out = Prepare((SourceStages(lambda record: fields, tuple(stages)),), seed=17).record(record)
    assert isinstance(out, PreparedSample)
    return out


@pytest.mark.parametrize("family", FAMILIES)
@given(size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)))
def test_the_grid_is_that_of_the_image_processor(family, size):
    """From the size alone, as the image processor resizes: checked against its own count and its own rule."""
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


def test_pixels_of_another_grid_than_counted():
    stage = ExpandVisualTokens(processor())
    grid, _ = stage.family.measure(60, 40)
    assert grid == (1, 4, 6)
    with pytest.raises(StageError, match=r"\(1, 6, 4\) patches, but \(1, 4, 6\)"):
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


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_without_images_carry_the_same_fields(family):
    out = expanded(family=family)
    length = len(out["input_ids"])
    assert out["mm_token_type_ids"].tolist() == [0] * length
    assert out["rope"].tolist() == [list(range(length))] * 3
    assert "images" not in out


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
        ([1, PAD, 2], [], "1 placeholders .* 0 images"),
        ([1, 2], [IMAGE], "0 placeholders .* 1 images"),
        ([PAD, PAD, 2], [IMAGE], "2 placeholders .* 1 images"),
    ],
)
def test_placeholders_must_be_as_many_as_images(ids, images, words):
    with pytest.raises(StageError, match=f"ExpandVisualTokens, {PLACE}: {words}"):
        ExpandVisualTokens(processor())(sample(input_ids=ids, labels=ids, images=images))


def test_the_order_of_stages():
    stage = ExpandVisualTokens(processor())
    with pytest.raises(StageError, match=f"{PLACE}: no input_ids"):
        stage(sample(text="a"))
    with pytest.raises(StageError, match="MeasureImages"):
        stage(sample(input_ids=[PAD, 1], images=[image_file()]))
    with pytest.raises(StageError, match="expanded already"):
        stage(stage(sample(input_ids=[1, PAD, 1], images=[IMAGE])))


def with_images(image_processor):
    return SimpleNamespace(tokenizer=processor().tokenizer, image_processor=image_processor)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ExpandVisualTokens(processor().tokenizer), "NoneType"),
        (lambda: ExpandVisualTokens(with_images(Qwen2VLImageProcessorPil(do_resize=False))), "do_resize"),
        (lambda: ExpandVisualTokens(processor(), family=3), "not 3"),
        (lambda: ExpandVisualTokens(processor(), family=FixedTokens(5, (8, 6), image_token="<pic>")), "'<pic>'"),
        (lambda: FixedTokens(0, (8, 6)), "FixedTokens.count is 0"),
        (lambda: FixedTokens(1, (8, 0)), "FixedTokens.size is 0"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_an_image_processor_of_another_rule():
    class Other(Qwen2VLImageProcessorPil):
        def get_number_of_image_patches(self, height, width, images_kwargs=None):
            return 4 + super().get_number_of_image_patches(height, width, images_kwargs)

    with pytest.raises(StageError, match="60 x 40 pixels"):
        ExpandVisualTokens(with_images(Other()))(sample(input_ids=[1, PAD, 2], images=[IMAGE]))


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


WHOLE = len(expanded(*FILES, chat=CHAT)["input_ids"])


# Where a sample is cut: 10 tokens, blocks from 3 to 8.
@pytest.mark.parametrize(
    ("blocks", "max_length", "rule", "kept"),
    [
        ([(3, 8)], 9, "right", (0, 9)),
        ([(3, 8)], 8, "right", (0, 8)),
        ([(3, 8)], 7, "right", (0, 3)),
        ([(3, 8)], 4, "right", (0, 3)),
        ([(3, 8)], 3, "right", (0, 3)),
        ([(3, 8)], 2, "right", (0, 2)),
        ([(0, 8)], 7, "right", None),
        ([(3, 8)], 9, "left", (1, 10)),
        ([(3, 8)], 7, "left", (3, 10)),
        ([(3, 8)], 6, "left", (8, 10)),
        ([(3, 8)], 2, "left", (8, 10)),
        ([(3, 10)], 5, "left", None),
        ([(0, 4), (4, 8)], 5, "right", (0, 4)),
        ([(0, 4), (4, 8)], 5, "left", (8, 10)),
        ([(3, 8)], 9, "drop", None),
        ([], 4, "left", (6, 10)),
    ],
)
def test_which_tokens_are_kept(blocks, max_length, rule, kept):
    found = kept_blocks(10, blocks, max_length, rule)
    assert found == (None if kept is None else slice(*kept))


@pytest.mark.parametrize("truncate", ["right", "left"])
@given(max_length=st.integers(1, WHOLE + 2))
def test_a_cut_never_goes_through_an_image(truncate, max_length):
    """At every length: whole images only, features equal to placeholders, or a Drop with a reason."""
    whole = expanded(*FILES, chat=CHAT)
    out = expanded(*FILES, chat=CHAT, max_length=max_length, truncate=truncate)
    if isinstance(out, Drop):
        assert out.reason in ("nothing_supervised", "too_long")
        assert out.detail.startswith("train-3.tar, key '00042'")
        return
    ids = out["input_ids"]
    assert len(ids) <= max_length
    assert len(ids) == WHOLE - out.get("truncated", 0)
    start = 0 if truncate == "right" else WHOLE - len(ids)
    for field in ("input_ids", "labels", "mm_token_type_ids"):
        assert np.array_equal(out[field], whole[field][start : start + len(ids)])
    assert (ids == PAD).sum() == sum(image.features for image in out["images"])
    assert (ids == START).sum() == (ids == END).sum() == len(out["images"])
    left = whole["images"][: len(out["images"])] if truncate == "right" else whole["images"][4 - len(out["images"]) :]
    assert out["images"] == left
    assert (out["labels"][1:] != IGNORED_LABEL).any()
    assert out["rope"].shape == (3, len(ids))
    assert out["rope"][:, 0].tolist() == [0, 0, 0]
    assert "deferred_cut" not in out


def test_a_cut_leaves_as_much_as_fits():
    block = 2 + 6
    chat = [turn("user", "a"), turn("assistant", "b"), turn("user", None), turn("assistant", "c")]
    whole = expanded(FILES[0], chat=chat)
    place = whole["input_ids"].tolist().index(START)
    for max_length in range(place, place + block):
        out = expanded(FILES[0], chat=chat, max_length=max_length)
        assert (len(out["input_ids"]), out["images"]) == (place, [])
    assert len(expanded(FILES[0], chat=chat, max_length=place + block)["images"]) == 1


def test_what_a_cut_drops():
    out = expanded(*FILES, chat=CHAT, max_length=WHOLE - 1, truncate="drop")
    assert out.reason == "too_long"
    assert re.search(rf"{PLACE}: {WHOLE} tokens .* {WHOLE - 1}", out.detail)
    assert expanded(*FILES, chat=CHAT, max_length=20).reason == "nothing_supervised"
    stages = pipeline(max_length=7)
    bare = FIXED.replace("'<|im_start|>' + m.role + '\\n'", "''").replace("'<|im_start|>assistant\\n'", "''")
    stages[1] = ChatTemplate(processor(), template=bare, template_kwargs={"mark": MARK})
    out = through(stages, sample(messages=[turn("user", None), turn("assistant", "a")], **members(FILES[0])))
    assert out.reason == "too_long"
    assert re.search(rf"{PLACE}: 13 tokens .* 7$", out.detail)


def test_a_bare_placeholder_is_a_block_of_its_own():
    out = ExpandVisualTokens(processor())(sample(input_ids=[1, PAD, 2], images=[IMAGE], deferred_cut=(7, "right")))
    assert out.reason == "nothing_supervised"
    out = ExpandVisualTokens(processor())(sample(input_ids=[1, PAD, 2], images=[IMAGE], deferred_cut=(7, "left")))
    assert out["input_ids"].tolist() == [PAD] * 6 + [2]


def test_what_leaves_the_stages():
    out = ready(pipeline())
    assert [image.grid for image in out.images] == [(1, 4, 6), (1, 6, 6), (1, 8, 2), (1, 4, 4)]
    assert sum(image.features for image in out.images) == out.token_types.sum() == (out.input_ids == PAD).sum()
    assert out.rope.shape == (3, out.length)
    assert [bytes(image.data) for image in out.images] == FILES
    for image, file in zip(out.images, FILES, strict=True):
        assert np.shares_memory(image.data, np.frombuffer(file, np.uint8))
    assert ready([Tokenize(processor())], text="plain", **dict.fromkeys(members(*FILES))).images == ()


def test_the_ops_name_the_place_of_their_stage():
    stages = pipeline()
    stages[1:1] = [RandomResize(scale=(0.5, 1)), RandomFlip()]
    out = ready(stages)
    assert [[op.place for op in image.ops] for image in out.images] == [[1, 2]] * 4
    assert len({image.ops for image in out.images}) == 4
    assert ready(stages).images[0].ops == out.images[0].ops


def test_images_must_be_counted_before_they_leave():
    for stages in (pipeline()[:3], [lambda sample: {"input_ids": [1, 2], "images": [b"x"]}]):
        with pytest.raises(StageError, match="not counted"):
            ready(stages)


@pytest.mark.parametrize(
    ("fields", "kept", "words"),
    [
        (("input_ids", "labels"), slice(-1), "mm_token_type_ids is of shape"),
        (("rope",), slice(2), r"rope is of shape \(2, "),
        (("images",), slice(1, None), "image tokens for .* image features"),
    ],
)
def test_later_stages_must_keep_tokens_and_features_together(fields, kept, words):
    with pytest.raises(StageError, match=words):
        ready([*pipeline(), lambda sample: {**sample, **{name: sample[name][kept] for name in fields}}])


def brightness(image: Image.Image) -> np.ndarray:
    """The mean of each channel of the resized image, twice."""
    return np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1))] * 2)


@pytest.mark.parametrize("family", [FixedTokens(5, (8, 6)), FixedTokens(5, (8, 6), pixels_of=brightness, rows=2)])
def test_another_family(family):
    """A fixed number of tokens per image, without M-RoPE: no token types, no positions."""
    stages = [
        MeasureImages(),
        ChatTemplate(processor(), template=FIXED, template_kwargs={"mark": "<image>"}),
        Tokenize(processor(), max_length=100),
        ExpandVisualTokens(processor().tokenizer, family=pickle.loads(pickle.dumps(family))),
    ]
    out = ready(
        stages, **members(*FILES), messages=[turn("user", None, "<image>", None, None, None), turn("assistant", "a")]
    )
    marker = backend().token_to_id("<image>")
    assert (out.input_ids == marker).sum() == 20
    assert [(image.grid, image.features) for image in out.images] == [((1, 1, family.rows), 5)] * 4
    assert (out.token_types, out.rope) == (None, None)
    pixels = stages[3].pixels(picture(60, 40), (1, 1, family.rows))
    small = np.asarray(picture(60, 40).resize((8, 6), Image.Resampling.BICUBIC), dtype=np.float32)
    expected = (
        np.stack([small.mean(axis=(0, 1))] * 2) if family.rows == 2 else small.transpose(2, 0, 1).reshape(1, -1) / 255
    )
    assert np.allclose(pixels, expected)
    with pytest.raises(StageError, match=r"'<image>' .* 0 images"):
        stages[3](sample(input_ids=[marker, 1]))


def test_a_family_that_miscounts():
    stage = ExpandVisualTokens(processor(), family=FixedTokens(5, (8, 6), rows=3))
    with pytest.raises(StageError, match=r"FixedTokens .* \(1, 144\) .* \(1, 1, 3\) patches"):
        stage.pixels(picture(8, 6))
