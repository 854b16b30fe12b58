"""The budget that an accelerator's memory allows: what the model's states leave, over the bytes that a token takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odb_stream.config import require_int
from odb_stream.errors import ConfigError
from odb_stream.inspection.model_size import ModelSize

USABLE = 0.9
"""The part of the memory that is planned with; the rest is for the allocator, workspaces and communication."""
MULTIPLE = 256
BYTES_PER_PARAMETER = 16.0
"""bf16 weights and gradients (2 + 2), and AdamW's two moments and master weights in fp32 (12), as mixed-precision
training keeps them on one accelerator (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1). Sharding over ranks
divides it."""

_UNITS = {"": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for kind, base in (("iB", 1024), ("B", 1000), ("", 1024))
} | {"B": 1}  # fmt: skip


def parse_bytes(name: str, text: str) -> int:
    """Bytes from a text such as ``"40GiB"`` (2^30), ``"80GB"`` (10^9), ``"512M"`` (2^20) or a plain number of bytes.

    Raises ConfigError, with ``name``, for anything else and for less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ConfigError(f"{name} is {text!r}, but must be a size such as 40GiB, 80GB or 512MiB")
    size = int(float(match[1]) * units[match[2].lower()])
    if size < 1:
        raise ConfigError(f"{name} is {text!r}, but must be at least one byte")
    return size


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The memory that a step may take, and what takes it.

    Args:
        memory: bytes of one accelerator.
        model: path of a transformers ``config.json`` (or its folder), its content, or a :class:`ModelSize`; its states
            are taken off the memory, and bytes a token are estimated from it.
        token_bytes: bytes a token of a step as you measured them, in place of the estimate. Without ``model`` the
            states count as nothing: give as ``memory`` what they leave.
        bytes_per_parameter: of weights, gradients and optimizer; see :data:`BYTES_PER_PARAMETER`.
        checkpointing: whether activations are computed anew in the backward pass.

    Raises:
        ConfigError: neither model nor token_bytes, or a number that cannot be.
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
                "memory alone suggests no budget: give the model's config.json too (--model), or the bytes that a "
                "token takes (--token-bytes)"
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
        size = self.model if isinstance(self.model, ModelSize) else None
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
    """A budget and what it rests on.

    ``tokens`` = (0.9 x ``memory`` - ``state_bytes``) / ``token_bytes``, down to a multiple of 256; 0 where nothing
    fits. ``token_bytes_measured`` tells that the bytes a token were given by the user; the two estimates are None
    without a model.
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
        """How many of these samples would be over the budget by themselves."""
        return sum(length > self.tokens for length in lengths)
