"""The figures of a live view as TensorBoard scalars."""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Protocol

from odb_stream.errors import ConfigError

PREFIX = "odb_stream"
UNWRITTEN = ("rank", "ranks")
"""Figures that never change during a run."""


class ScalarWriter(Protocol):
    """The part of ``torch.utils.tensorboard.SummaryWriter`` that a view uses."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write a number."""
        ...

    def close(self) -> None:
        """Write what is still buffered, and close the file."""
        ...


def open_writer(folder: str | PathLike[str]) -> ScalarWriter:
    """A SummaryWriter on a folder. Raises ConfigError without tensorboard, or if the folder is not writable."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"tensorboard is {str(folder)!r}, but the package cannot be imported ({error}): "
            'pip install "odb-stream[tensorboard]"'
        ) from error
    try:
        writer: ScalarWriter = SummaryWriter(str(folder))
    except OSError as error:
        raise ConfigError(
            f"tensorboard is {str(folder)!r}, where no event file can be written ({error.strerror or error}): "
            "give a folder"
        ) from error
    return writer


def write_scalars(writer: ScalarWriter, figures: Mapping[str, Any]) -> None:
    """Write every number of the figures under its path, such as ``odb_stream/recent/padding``, at the loader's step.

    The figures of all ranks are written only if there are several ranks.
    """
    kept = {name: value for name, value in figures.items() if name not in UNWRITTEN}
    if figures["ranks"] == 1:
        del kept["global"]
    for tag, number in _numbers(PREFIX, kept):
        writer.add_scalar(tag, number, figures["steps"])


def _numbers(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{path}/{name}", value)
        elif isinstance(value, int | float):
            yield f"{path}/{name}", value
