"""The names that users may import. Adding or removing one is a decision, so this list changes with it."""

import subprocess
import sys

import odb_stream as odb

NAMES = {
    "AlignmentTimeout", "Budget", "ConfigError", "Drop", "FailureBudget", "FromDataset", "Loader", "Mix",
    "OdbStreamError", "OversizeError", "PeerError", "Pipeline", "Sample", "SampleRef", "ShardError", "Shards",
    "StageError", "StateError", "StepInfo", "Storage", "WorkerError", "World", "pop_step", "stages",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(odb.__all__) == NAMES


def test_every_public_name_is_there() -> None:
    for name in odb.__all__:
        assert getattr(odb, name) is not None
    assert set(odb.__all__) <= set(dir(odb))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(odb, "DataLoader")


def test_importing_the_package_is_light() -> None:
    script = "import sys, odb_stream; print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
