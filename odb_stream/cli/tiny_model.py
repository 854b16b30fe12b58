"""A tiny, randomly initialised Qwen3 or Qwen3-VL and its training step on the CPU: to see a recipe being learnt."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from odb_stream.errors import ConfigError, OdbStreamError
from odb_stream.sample import StepInfo
from odb_stream.stages.families import QwenVision
from odb_stream.stages.visual import ExpandVisualTokens

LEARNING_RATE = 5e-3
WIDTH = 64
TEXT = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


class TinyTrainer:
    """Fits the model, one AdamW update a step.

    Args:
        vocabulary: token ids run from 0 to ``vocabulary - 1``.
        seed: of the initial weights; the global generator of torch is left as it was.
        expand: the stage of a vision pipeline whose images the model must see; None makes a text model.

    Raises ConfigError where the tiny model cannot take what the stage makes of images.
    """

    def __init__(self, vocabulary: int, seed: int, expand: ExpandVisualTokens | None = None) -> None:
        self._vocabulary = vocabulary
        self._model = tiny_qwen3(vocabulary, seed) if expand is None else tiny_qwen3_vl(vocabulary, seed, expand)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)

    @property
    def parameters(self) -> int:
        """Numbers that are fitted."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def train(self, batch: Mapping[str, Any], step: StepInfo) -> float:
        """One update; returns the loss, the mean over the supervised tokens of the global batch.

        Raises OdbStreamError where a token is outside the vocabulary or the loss is not finite.
        """
        largest = int(batch["input_ids"].max())
        if largest >= self._vocabulary:
            raise OdbStreamError(
                f"step {step.step} of epoch {step.epoch} holds token {largest}, but the model was made for "
                f"{self._vocabulary} tokens: train with the tokenizer that the recipe's Tokenize stage has"
            )
        loss = self._model(**{"use_cache": False, **batch}).loss * step.loss_scale
        value = loss.item()
        if not math.isfinite(value):
            raise OdbStreamError(f"the loss of step {step.step} of epoch {step.epoch} is {value}")
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(value)


def tiny_qwen3(vocabulary: int, seed: int) -> Any:
    """The text model: about 60 thousand numbers, and 64 more for each token of the vocabulary."""
    config = Qwen3Config(vocab_size=vocabulary, tie_word_embeddings=True, **TEXT)
    return _seeded(Qwen3ForCausalLM, config, seed)


def tiny_qwen3_vl(vocabulary: int, seed: int, expand: ExpandVisualTokens) -> Any:
    """The vision model: the text model behind a vision encoder of about 350 thousand numbers, one deepstack level.

    Its patches are those that the stage's image processor makes. Raises ConfigError for another family of images.
    """
    if not isinstance(expand.family, QwenVision):
        raise ConfigError(
            f"--train fits a tiny Qwen3-VL, but the recipe's ExpandVisualTokens is for {type(expand.family).__name__}: "
            "stream the recipe without --train"
        )
    images = expand.family.image_processor
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_heads": 2,
        "patch_size": images.patch_size,
        "temporal_patch_size": images.temporal_patch_size,
        "spatial_merge_size": images.merge_size,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 16 * 16,
        "deepstack_visual_indexes": [0],
    }
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    start, end = expand.block_ids or (vocabulary, vocabulary)
    config = Qwen3VLConfig(
        vision_config=vision,
        text_config={**TEXT, "vocab_size": vocabulary, "rope_parameters": rope},
        image_token_id=expand.image_id,
        video_token_id=vocabulary,  # no token: there are no videos
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    return _seeded(Qwen3VLForConditionalGeneration, config, seed)


def _seeded(kind: Any, config: Any, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    return model.train()
