"""Token-budget batches formed online, after the true cost of every sample is known.

The names below are the public contract. They are imported on first use, so that a worker process, which needs only the
stages, loads neither torch nor the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odb_stream import stages as stages
    from odb_stream.config import Budget, FailureBudget, World
    from odb_stream.errors import (
        AlignmentTimeout,
        ConfigError,
        OdbStreamError,
        OversizeError,
        PeerError,
        ShardError,
        StageError,
        StateError,
        WorkerError,
    )
    from odb_stream.loader import Loader
    from odb_stream.nodes.collate import pop_step
    from odb_stream.sample import Drop, Sample, SampleRef, StepInfo
    from odb_stream.sources.dataset import FromDataset
    from odb_stream.sources.mix import Mix
    from odb_stream.sources.pipeline import Pipeline
    from odb_stream.sources.shards import Shards
    from odb_stream.storage.options import Storage

_HOME = {
    "Budget": "config",
    "FailureBudget": "config",
    "World": "config",
    "AlignmentTimeout": "errors",
    "ConfigError": "errors",
    "OdbStreamError": "errors",
    "OversizeError": "errors",
    "PeerError": "errors",
    "ShardError": "errors",
    "StageError": "errors",
    "StateError": "errors",
    "WorkerError": "errors",
    "Loader": "loader.loader",
    "pop_step": "nodes.collate",
    "Pipeline": "sources.pipeline",
    "Drop": "sample",
    "Sample": "sample",
    "SampleRef": "sample",
    "StepInfo": "sample",
    "FromDataset": "sources.dataset",
    "Mix": "sources.mix",
    "Shards": "sources.shards",
    "Storage": "storage.options",
}

__all__ = [
    "AlignmentTimeout",
    "Budget",
    "ConfigError",
    "Drop",
    "FailureBudget",
    "FromDataset",
    "Loader",
    "Mix",
    "OdbStreamError",
    "OversizeError",
    "PeerError",
    "Pipeline",
    "Sample",
    "SampleRef",
    "ShardError",
    "Shards",
    "StageError",
    "StateError",
    "StepInfo",
    "Storage",
    "WorkerError",
    "World",
    "pop_step",
    "stages",
]


def __getattr__(name: str) -> Any:
    if name == "stages":
        return import_module("odb_stream.stages")
    if name in _HOME:
        return getattr(import_module(f"odb_stream.{_HOME[name]}"), name)
    raise AttributeError(f"module 'odb_stream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
