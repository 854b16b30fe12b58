"""Packed samples must not see each other: choose the fastest attention that keeps them apart, then try the model."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import is_flash_attn_2_available

from odb_stream.errors import ConfigError
from odb_stream.nodes.collate import Batch

LENGTHS = (5, 7)
"""Lengths of the two samples that are packed for the trial."""

MOST_CHANGE = 1e-3
"""How much rounding may change logits, relative to the largest; samples that see each other change far more."""

logger = logging.getLogger(__name__)


def choose_attention(model: Any, *, half: bool) -> None:
    """Switch a model on CUDA from sdpa to flash_attention_2 if that is installed and the model computes in 16 bits.

    sdpa builds a dense mask over the packed row; kernels for variable lengths skip the work between samples.
    """
    # transformers has no public name for it. Anything but the default is the user's choice, and stays.
    current = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if current != "sdpa" or not half or model.device.type != "cuda" or not is_flash_attn_2_available():
        return
    try:
        model.set_attn_implementation("flash_attention_2")
    except (ValueError, ImportError) as error:
        logger.info("packed batches use sdpa: the model does not support flash attention (%s)", error)


def check_packing(model: Any, autocast: Any) -> None:
    """Raise a ConfigError if one packed sample changes what the model says of the next.

    ``autocast`` is a context manager to run the model in. The trial takes a dozen tokens. Other models than those of
    transformers, and models whose weights are not loaded yet, are not tried.
    """
    if not hasattr(model, "get_input_embeddings") or not hasattr(model, "config"):
        return
    parameters = list(model.parameters())
    if any(parameter.is_meta or parameter.numel() == 0 for parameter in parameters):
        logger.info(
            "not all of the model's weights are loaded, so it was not tried whether it keeps packed samples apart"
        )
        return
    ids = _plain_tokens(model.config, model.get_input_embeddings().weight.shape[0])
    first, second = (_row(ids, shift, model) for shift in (0, 1))
    with torch.no_grad(), _evaluating(model), autocast:
        one, other = (model(**batch).logits[0, LENGTHS[0] :].float() for batch in (first, second))
    # Only the first sample differs between the two rows, so nothing may change in the second one.
    change = float((one - other).abs().max() / one.abs().max())
    if not change <= MOST_CHANGE:
        name = getattr(model.config, "_attn_implementation", None)
        raise ConfigError(
            f"layout is 'packed', but {type(model).__name__} with attention {name!r} lets a packed sample see the one "
            f"before it (the logits change by {change:.1%}): set the model's attn_implementation to 'sdpa', 'eager' or "
            "'flash_attention_2', or use layout='padded'"
        )


def check_positions(model: Any, batch: Batch) -> None:
    """Raise a ConfigError if a model without M-RoPE gets four rows of positions."""
    positions = batch.get("position_ids")
    if positions is not None and positions.ndim == 3 and not has_mrope(model):
        raise ConfigError(
            f"the packed batches hold {positions.shape[0]} rows of positions for M-RoPE (position_ids of shape "
            f"{tuple(positions.shape)}), which {type(model).__name__} does not have: train the model that the "
            "pipeline's ExpandVisualTokens was made for, or use layout='padded'"
        )


def has_mrope(model: Any) -> bool:
    """Whether a model's text part turns its keys and queries by three positions (time, height, width)."""
    config = getattr(model, "config", None)
    if config is None:
        return False
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return "mrope_section" in rope or hasattr(getattr(model, "model", None), "get_rope_index")


def _row(ids: list[int], shift: int, model: Any) -> Batch:
    """Two packed samples; the tokens of the first depend on ``shift``."""
    head, tail = LENGTHS
    tokens = [ids[(place + shift) % len(ids)] for place in range(head)]
    tokens += [ids[place % len(ids)] for place in range(tail)]
    positions = torch.cat([torch.arange(head), torch.arange(tail)])[None]
    if has_mrope(model):
        positions = positions.expand(4, 1, -1)
    ends = torch.tensor([0, head, head + tail], dtype=torch.int32, device=model.device)
    return {
        "input_ids": torch.tensor([tokens], device=model.device),
        "position_ids": positions.to(model.device),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(LENGTHS),
        "max_length_k": max(LENGTHS),
        "use_cache": False,
    }


def _plain_tokens(config: Any, vocabulary: int) -> list[int]:
    """Up to 64 ordinary tokens: no placeholders for images, no end, no padding."""
    parts = [config, config.get_text_config()] if hasattr(config, "get_text_config") else [config]
    special: set[Any] = set()
    for part in parts:
        for name, value in vars(part).items():
            if name.endswith(("token_id", "token_index")):
                special.update(value if isinstance(value, list) else [value])
    return [token for token in range(vocabulary) if token not in special][:64]


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
