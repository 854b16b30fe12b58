"""The cut of a sample with images: never through an image, and what does not fit is dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vision_support import members, processor, sample, through, turn
from visual_pipelines import CHAT, END, FILES, FIXED, MARK, PAD, START, expanded, image, pipeline

from odb_stream.sample import IGNORED_LABEL, Drop
from odb_stream.stages import (
    ChatTemplate,
    ExpandVisualTokens,
)
from odb_stream.stages.visual import kept_blocks

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
    assert (out.reason, out.detail.split(": ")[1]) == (
        "too_long",
        f"{WHOLE} tokens with its images, max_length is {WHOLE - 1}",
    )
    assert expanded(*FILES, chat=CHAT, max_length=20).reason == "nothing_supervised"
    stages = pipeline(max_length=7)
    bare = FIXED.replace("'<|im_start|>' + m.role + '\\n'", "''").replace("'<|im_start|>assistant\\n'", "''")
    stages[1] = ChatTemplate(processor(), template=bare, template_kwargs={"mark": MARK})
    out = through(stages, sample(messages=[turn("user", None), turn("assistant", "a")], **members(FILES[0])))
    assert (out.reason, out.detail.split(": ")[1]) == ("too_long", "13 tokens with its images, max_length is 7")


def test_a_bare_placeholder_is_a_block_of_its_own():
    out = ExpandVisualTokens(processor())(sample(input_ids=[1, PAD, 2], images=[image()], deferred_cut=(7, "right")))
    assert out.reason == "nothing_supervised"
    out = ExpandVisualTokens(processor())(sample(input_ids=[1, PAD, 2], images=[image()], deferred_cut=(7, "left")))
    assert out["input_ids"].tolist() == [PAD] * 6 + [2]
