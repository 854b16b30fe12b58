"""A tiny, randomly initialised Qwen3 and its training step, on the CPU: enough to see that a recipe can be learnt."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from odb_stream.errors import OdbStreamError
from odb_stream.sample import StepInfo

LEARNING_RATE = 5e-3


class TinyTrainer:
    """Fits the model, one AdamW update a step.

    Args:
        vocabulary: token ids run from 0 to ``vocabulary - 1``.
        seed: of the initial weights; the global generator of torch is left as it was.
    """

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._vocabulary = vocabulary
        self._model = tiny_qwen3(vocabulary, seed)
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
    """The model: about 60 thousand numbers, and 64 more for each token of the vocabulary."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model.train()
