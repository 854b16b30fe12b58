"""What a decoder-only language model takes in memory, estimated from the numbers in its configuration file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odb_stream.errors import ConfigError

MEASURED = "give your own measured bytes a token (--token-bytes, Accelerator(token_bytes=...)) instead"
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
        """The sizes in a transformers ``config.json``, or in the folder that holds one.

        Raises ConfigError where there is none, where a number is missing, and for a mixture of experts.
        """
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        try:
            config = json.loads(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"the model's configuration {file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"the model's configuration {file} is no JSON: {error}") from error
        return cls.of(config, str(file))

    @classmethod
    def of(cls, config: Any, name: str = "the model's configuration") -> "ModelSize":
        """The sizes in a configuration's content, of which ``text_config`` counts where there is one.

        Raises ConfigError as :meth:`from_config` does.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"{name} holds {type(config).__name__}, but must hold an object, as config.json does")
        nested = config.get("text_config")
        text = {**config, **nested} if isinstance(nested, Mapping) else config
        experts = next((key for key in _EXPERTS if isinstance(text.get(key), int) and text[key] > 1), None)
        if experts is not None:
            raise ConfigError(
                f"{name} has {experts}: {text[experts]}, and the memory of a mixture of experts is not estimated: "
                f"{MEASURED}"
            )

        def number(key: str, default: int | None = None) -> int:
            value = text.get(key)
            value = default if value is None else value
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: {key} is {value!r}, but must be a whole number above 0; {MEASURED}")
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
        """Weights of embeddings, attention, gated MLP and norms; biases, which hardly count, are left out."""
        hidden, width = self.hidden_size, self.head_dim
        attention = hidden * width * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        layer = attention + 3 * hidden * self.intermediate_size + 2 * hidden
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer + hidden + self.vision_parameters

    @property
    def layer_bytes(self) -> int:
        """Bytes a token that one layer keeps for its backward pass, in bf16.

        The count of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), tensor by tensor, for layers as they are
        today: no dropout masks, attention that does not store its scores, keys and values of fewer heads, a gated MLP.
        Two bytes each: the inputs of both norms, of attention and of the MLP (4 x hidden_size); queries and the
        attention's output (2 x heads x head_dim); keys and values (2 x key/value heads x head_dim); gate, its
        activation, up, and their product (4 x intermediate_size).
        """
        query, key = (heads * self.head_dim for heads in (self.num_attention_heads, self.num_key_value_heads))
        return 2 * (4 * self.hidden_size + 2 * query + 2 * key + 4 * self.intermediate_size)

    def token_bytes(self, *, checkpointing: bool) -> int:
        """Bytes a token of a step: the layers' activations in bf16, and logits in fp32 with their gradient.

        With activation ``checkpointing`` only each layer's input is kept (2 x hidden_size bytes, as in section 5 of the
        paper), besides all of the one layer that is being computed anew.
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
