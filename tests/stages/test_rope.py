"""M-RoPE positions are those of the models themselves."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.stages.rope import rope_positions

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
def chats(draw):
    """Token types and grids of a chat with texts of any length between the images (at least one token)."""
    grids = draw(st.lists(st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 9)), max_size=5))
    texts = [draw(st.integers(0, 9)), *[draw(st.integers(1, 9)) for _ in grids[1:]], draw(st.integers(0, 9))]
    types = [0] * texts[0]
    for (time, height, width), text in zip(grids, texts[1:], strict=False):
        types += [1] * (time * height * width) + [0] * text
    return np.array(types or [0], dtype=np.int32), [(time, 2 * height, 2 * width) for time, height, width in grids]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@given(chat=chats())
@settings(max_examples=80)
def test_equal_to_the_models_own(family, chat):
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
def test_examples(types, grids, rows):
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
