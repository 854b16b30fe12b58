"""A tiny, randomly initialised Qwen3 or Qwen3-VL and its training step on the CPU: shows that a recipe can be learned.

``odb-stream run --train``, the recipes in ``pipelines/`` and the pages of ``docs/`` train it.
"""

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
# The token ids of the configuration default to those of the published models, which a tiny vocabulary does not have.
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
    """Trains the model, one AdamW update per step.

    Args:
        vocabulary: token ids run from 0 to ``vocabulary - 1``.
        seed: seed of the initial weights; the global generator of torch stays as it was.
        expand: the stage that expands the images of a vision pipeline; None builds a text model.

    Raises ConfigError if the model cannot take the images of this stage.
    """

    def __init__(self, vocabulary: int, seed: int, expand: ExpandVisualTokens | None = None) -> None:
        self._vocabulary = vocabulary
        self._model = tiny_qwen3(vocabulary, seed) if expand is None else tiny_qwen3_vl(vocabulary, seed, expand)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def train(self, batch: Mapping[str, Any], step: StepInfo) -> float:
        """Make one update and return the loss, the mean over the supervised tokens of the global batch.

        Raises OdbStreamError if a token is outside the vocabulary or the loss is not finite.
        """
        # An id beyond the vocabulary would be an IndexError deep inside the model, without the step.
        largest = int(batch["input_ids"].max())
        if largest >= self._vocabulary:
            raise OdbStreamError(
                f"step {step.step} of epoch {step.epoch} holds token {largest}, but the model has a vocabulary of "
                f"{self._vocabulary} tokens: train with the tokenizer of the recipe's Tokenize stage"
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
    """The text model: about 60,000 parameters, and 64 more per token of the vocabulary."""
    config = Qwen3Config(vocab_size=vocabulary, tie_word_embeddings=True, **TEXT)
    return _seeded(Qwen3ForCausalLM, config, seed)


def tiny_qwen3_vl(vocabulary: int, seed: int, expand: ExpandVisualTokens) -> Any:
    """The vision model: the text model behind a vision encoder of about 350,000 parameters, with one deepstack level.

    It takes the patches that the stage's image processor makes. Raises ConfigError for another family of images.
    """
    if not isinstance(expand.family, QwenVision):
        raise ConfigError(
            f"the tiny model is a Qwen3-VL, but the recipe's ExpandVisualTokens prepares images for "
            f"{type(expand.family).__name__}: stream the recipe without --train"
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
        video_token_id=vocabulary,  # matches no token, because there are no videos
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    return _seeded(Qwen3VLForConditionalGeneration, config, seed)


def _seeded(kind: Any, config: Any, seed: int) -> Any:
    # transformers initialises weights with the global generator only, so fork it and leave the caller's draws alone.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    return model.train()
