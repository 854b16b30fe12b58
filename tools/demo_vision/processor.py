"""What the vision recipe's processor is loaded from: a tokenizer with a template of its own, and the image settings."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from demo_text import tokenizer

VOCABULARY = 768
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
TOKEN_PIXELS = 32 * 32
"""Pixels of an image that one token stands for: 2 x 2 patches of 16 x 16."""

IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"shortest_edge": 4 * TOKEN_PIXELS, "longest_edge": 144 * TOKEN_PIXELS},
}
"""As Qwen3-VL measures images, but with small limits: 4 to 144 tokens an image."""


def write(chats: Iterable[dict[str, Any]], folder: Path) -> None:
    """Train the tokenizer on these chats and write all files into a folder."""
    trained = tokenizer.train(chats, vocabulary=VOCABULARY, special_tokens=SPECIAL_TOKENS)
    tokenizer.save(trained, folder, special_tokens=SPECIAL_TOKENS, template=TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES, indent=2) + "\n", encoding="utf-8")
