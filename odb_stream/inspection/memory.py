"""The token budget that an accelerator's memory allows: the bytes that the model's states leave / bytes per token.

Both are estimated from the numbers in the configuration file of a decoder-only language model.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odb_stream.config import require_int
from odb_stream.errors import ConfigError

USABLE = 0.9
"""The share of the memory that is planned with; the rest is for the allocator, workspaces and communication."""
MULTIPLE = 256
"""Suggested budgets are multiples of this: a round number, and no false precision."""
BYTES_PER_PARAMETER = 16.0
"""bf16 weights and gradients (2 + 2), and AdamW's two moments and master weights in fp32 (12), as mixed-precision
training keeps them on one accelerator (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1). Divide it by what
sharding over ranks divides it by."""

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for kind, base in (("ib", 1024), ("b", 1000), ("", 1024))
}


def parse_bytes(name: str, text: str) -> int:
    """Bytes from a text such as ``"40GiB"`` (2^30), ``"80GB"`` (10^9), ``"512M"`` (2^20) or a plain number of bytes.

    Raises ConfigError, which names ``name``, for anything else and for less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{name} is {text!r}, but must be a size such as 40GiB, 80GB or 512MiB")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise ConfigError(f"{name} is {text!r}, but must be at least one byte")
    return size


_MEASURED = "give the bytes per token that you measured (--token-bytes, Accelerator(token_bytes=...)) instead"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The sizes of a decoder-only transformer with a gated MLP, by the names of its configuration.

    ``vision_parameters`` counts those of a vision encoder's blocks, 0 without one.
    """

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool = False
    vision_parameters: int = 0

    @classmethod
    def from_config(cls, path: str | Path) -> "ModelSize":
        """The sizes in a transformers ``config.json``, or in the one of a folder.

        Raises ConfigError if there is no such file, if a number is missing, and for a mixture of experts.
        """
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        try:
            config = json.loads(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"the model's configuration {file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"the model's configuration {file} is not JSON: {error}") from error
        return cls.of(config, str(file))

    @classmethod
    def of(cls, config: Any, name: str = "the model's configuration") -> "ModelSize":
        """The sizes in the content of a configuration; a nested ``text_config`` takes precedence.

        Raises ConfigError as :meth:`from_config` does.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"{name} contains a {type(config).__name__}, but must be an object, as in config.json")
        nested = config.get("text_config")
        text = {**config, **nested} if isinstance(nested, Mapping) else config
        experts = next((key for key in _EXPERTS if isinstance(text.get(key), int) and text[key] > 1), None)
        if experts is not None:
            raise ConfigError(
                f"{name} has {experts}: {text[experts]}, but the memory of a mixture of experts cannot be estimated: "
                f"{_MEASURED}"
            )

        def number(key: str, default: int | None = None) -> int:
            value = text.get(key)
            value = default if value is None else value
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: {key} is {value!r}, but must be an integer above 0; {_MEASURED}")
            return value

        hidden, heads = number("hidden_size"), number("num_attention_heads")
        return cls(
            hidden_size=hidden,
            num_hidden_layers=number("num_hidden_layers"),
            intermediate_size=number("intermediate_size"),
            vocab_size=number("vocab_size"),
            num_attention_heads=heads,
            num_key_value_heads=number("num_key_value_heads", heads),
            head_dim=number("head_dim", max(1, hidden // heads)),
            tie_word_embeddings=text.get("tie_word_embeddings") is True,
            vision_parameters=_vision_parameters(config.get("vision_config")),
        )

    @property
    def parameters(self) -> int:
        """Number of weights in embeddings, attention, gated MLP and norms; biases are too few to matter."""
        hidden, width = self.hidden_size, self.head_dim
        attention = hidden * width * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        layer = attention + 3 * hidden * self.intermediate_size + 2 * hidden
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer + hidden + self.vision_parameters

    @property
    def layer_bytes(self) -> int:
        """Bytes per token that one layer keeps for its backward pass, in bf16.

        The count of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), tensor by tensor, for today's layers: no
        dropout masks, attention that does not store its scores, fewer heads for keys and values, a gated MLP.
        Two bytes each: the inputs of both norms, of attention and of the MLP (4 x hidden_size); queries and the
        attention's output (2 x heads x head_dim); keys and values (2 x key/value heads x head_dim); gate, its
        activation, up, and their product (4 x intermediate_size).
        """
        query, key = (heads * self.head_dim for heads in (self.num_attention_heads, self.num_key_value_heads))
        return 2 * (4 * self.hidden_size + 2 * query + 2 * key + 4 * self.intermediate_size)

    def token_bytes(self, *, checkpointing: bool) -> int:
        """Bytes per token of a step: the layers' activations in bf16, and logits in fp32 with their gradient.

        With activation ``checkpointing`` each layer keeps only its input (2 x hidden_size bytes, as in section 5 of the
        paper), and one layer at a time, which is being recomputed, keeps everything.
        """
        layers = self.num_hidden_layers
        kept = 2 * self.hidden_size * layers + self.layer_bytes if checkpointing else self.layer_bytes * layers
        return kept + 8 * self.vocab_size


def _vision_parameters(config: Any) -> int:
    """Weights of a vision encoder's blocks: attention of 4 x hidden^2, an MLP of 2 x hidden x intermediate."""
    if not isinstance(config, Mapping):
        return 0
    depth = config.get("depth", config.get("num_hidden_layers"))
    sizes = (depth, config.get("hidden_size"), config.get("intermediate_size"))
    if not all(type(size) is int for size in sizes):
        return 0
    layers, hidden, intermediate = (int(size) for size in sizes if size is not None)
    return layers * (4 * hidden * hidden + 2 * hidden * intermediate)


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The memory of an accelerator, and what a training step stores in it.

    Args:
        memory: bytes of one accelerator.
        model: path of a transformers ``config.json`` (or its folder), its content, or a :class:`ModelSize`. The model's
            states are subtracted from the memory, and the bytes per token are estimated from its sizes.
        token_bytes: bytes per token of a step as you measured them, instead of the estimate. Without ``model`` the
            states count as 0: give the memory that they leave as ``memory``.
        bytes_per_parameter: bytes of weights, gradients and optimizer; see :data:`BYTES_PER_PARAMETER`.
        checkpointing: whether the backward pass recomputes activations.

    Raises:
        ConfigError: neither model nor token_bytes is given, or a number is out of range.
    """

    memory: int
    model: ModelSize | Mapping[str, Any] | str | Path | None = None
    token_bytes: int | None = None
    bytes_per_parameter: float = BYTES_PER_PARAMETER
    checkpointing: bool = False

    def __post_init__(self) -> None:
        require_int("memory", self.memory, minimum=1)
        if self.token_bytes is not None:
            require_int("token_bytes", self.token_bytes, minimum=1)
        if self.model is None and self.token_bytes is None:
            raise ConfigError(
                "memory alone determines no budget: give the model's config.json too (--model), or the bytes per token "
                "(--token-bytes)"
            )
        given = self.bytes_per_parameter
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
            raise ConfigError(f"bytes_per_parameter is {given!r}, but must be a number of at least 0")
        model = self.model
        if isinstance(model, Mapping):
            model = ModelSize.of(model)
        elif model is not None and not isinstance(model, ModelSize):
            model = ModelSize.from_config(model)
        object.__setattr__(self, "model", model)

    def budget(self) -> "MemoryBudget":
        """The largest budget that fits."""
        size = self.model if isinstance(self.model, ModelSize) else None  # as __post_init__ left it
        parameters = None if size is None else size.parameters
        states = round((parameters or 0) * self.bytes_per_parameter)
        with_, without = (None if size is None else size.token_bytes(checkpointing=on) for on in (True, False))
        estimate = with_ if self.checkpointing else without
        token_bytes = self.token_bytes or estimate or 0
        room = int(self.memory * USABLE) - states
        return MemoryBudget(
            memory=self.memory,
            parameters=parameters,
            state_bytes=states,
            token_bytes=token_bytes,
            token_bytes_measured=self.token_bytes is not None,
            token_bytes_checkpointing=with_,
            token_bytes_no_checkpointing=without,
            checkpointing=self.checkpointing,
            tokens=max(0, room // token_bytes // MULTIPLE * MULTIPLE),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """A budget and how it was computed.

    ``tokens`` = (0.9 x ``memory`` - ``state_bytes``) / ``token_bytes``, rounded down to a multiple of 256; 0 if nothing
    fits. ``token_bytes_measured`` is True if the user gave the bytes per token; the two estimates are None without a
    model.
    """

    memory: int
    parameters: int | None
    state_bytes: int
    token_bytes: int
    token_bytes_measured: bool
    token_bytes_checkpointing: int | None
    token_bytes_no_checkpointing: int | None
    checkpointing: bool
    tokens: int

    def oversize(self, lengths: Sequence[int]) -> int:
        """How many of these samples exceed the budget on their own."""
        return sum(length > self.tokens for length in lengths)
