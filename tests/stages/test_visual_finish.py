"""What leaves a vision pipeline as a prepared sample, and the hook for other families of models."""

import pickle

import numpy as np
import pytest
from PIL import Image
from vision_support import backend, members, picture, processor, sample, turn
from visual_pipelines import FILES, FIXED, PAD, pipeline, ready

from odb_stream.errors import StageError
from odb_stream.stages import (
    ChatTemplate,
    ExpandVisualTokens,
    FixedTokens,
    MeasureImages,
    RandomFlip,
    RandomResize,
    Tokenize,
)


def test_what_leaves_the_stages():
    out = ready(pipeline())
    assert [image.grid for image in out.images] == [(1, 4, 6), (1, 6, 6), (1, 8, 2), (1, 4, 4)]
    assert sum(image.features for image in out.images) == out.token_types.sum() == (out.input_ids == PAD).sum()
    assert out.rope.shape == (3, out.length)
    assert [bytes(image.data) for image in out.images] == FILES
    assert all(
        np.shares_memory(image.data, np.frombuffer(file, np.uint8))
        for image, file in zip(out.images, FILES, strict=True)
    )
    assert ready([Tokenize(processor())], text="plain", **dict.fromkeys(members(*FILES))).images == ()


def test_the_ops_name_the_place_of_their_stage():
    stages = pipeline()
    stages[1:1] = [RandomResize(scale=(0.5, 1)), RandomFlip()]
    out = ready(stages)
    assert [[op.place for op in image.ops] for image in out.images] == [[1, 2]] * 4
    assert len({image.ops for image in out.images}) == 4
    assert ready(stages).images[0].ops == out.images[0].ops


def test_images_must_be_counted_before_they_leave():
    with pytest.raises(
        StageError, match=r"images whose tokens were not counted.*add MeasureImages and ExpandVisualTokens"
    ):
        ready(pipeline()[:3])
    with pytest.raises(StageError, match="images whose tokens were not counted"):
        ready([lambda sample: {"input_ids": [1, 2], "images": [b"x"]}])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda sample: {**sample, "input_ids": sample["input_ids"][:-1], "labels": sample["labels"][:-1]},
            "mm_token_type_ids is of shape",
        ),
        (lambda sample: {**sample, "rope": sample["rope"][:2]}, r"rope is of shape \(2, "),
        (lambda sample: {**sample, "images": sample["images"][1:]}, "image tokens for .* image features"),
    ],
)
def test_stages_behind_must_keep_tokens_and_features_together(change, words):
    with pytest.raises(StageError, match=words):
        ready([*pipeline(), change])


class Brightness:
    """The mean of each channel of the resized image, twice."""

    def __call__(self, image: Image.Image) -> np.ndarray:
        mean = np.asarray(image, dtype=np.float32).mean(axis=(0, 1))
        return np.stack([mean, mean])


@pytest.mark.parametrize("family", [FixedTokens(5, (8, 6)), FixedTokens(5, (8, 6), pixels_of=Brightness(), rows=2)])
def test_another_family(family):
    """A fixed number of tokens an image, without M-RoPE: no token types, no positions."""
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
    with pytest.raises(StageError, match="placeholders '<image>' in the tokens, but 0 images"):
        stages[3](sample(input_ids=[marker, 1]))


def test_a_family_that_miscounts():
    stage = ExpandVisualTokens(processor(), family=FixedTokens(5, (8, 6), rows=3))
    with pytest.raises(
        StageError, match=r"FixedTokens gives pixels of shape \(1, 144\) .* but measures \(1, 1, 3\) patches"
    ):
        stage.pixels(picture(8, 6))
