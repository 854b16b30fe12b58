"""Where a run stands: one typed state, one codec, whether it fits a loader, and another number of ranks."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("odb_stream.checkpoint.fit"), name)
