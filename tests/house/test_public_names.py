"""The names that users may import, and the old places of those that moved. Changing the lists is a decision."""

import re
import subprocess
import sys
from importlib import import_module

import pytest
from import_graph import sources

import odb_stream as odb

NAMES = {
    "AlignmentTimeout", "Budget", "ConfigError", "Drop", "FailureBudget", "FromDataset", "Loader", "Mix",
    "OdbStreamError", "OversizeError", "PeerError", "Pipeline", "Sample", "SampleRef", "ShardError", "Shards",
    "StageError", "StateError", "StepInfo", "Storage", "WorkerError", "World", "pop_step", "stages",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(odb.__all__) == NAMES
    for name in odb.__all__:
        assert getattr(odb, name) is not None
    assert set(odb.__all__) <= set(dir(odb))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(odb, "DataLoader")


def test_importing_the_package_is_light() -> None:
    script = "import sys, odb_stream; print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# Old module and name -> new module and name.
MOVED = {
    ("odb_stream.resume", "merge"): ("odb_stream.checkpoint", "merge"),
    ("odb_stream.adapters.hf", "LoaderMixin"): ("odb_stream.adapters.huggingface", "LoaderMixin"),
    ("odb_stream.adapters.hf", "StreamTrainer"): ("odb_stream.adapters.huggingface", "StreamTrainer"),
    ("odb_stream.adapters.lightning_data", "Stream"): ("odb_stream.adapters.lightning", "Stream"),
    ("odb_stream.cli.tiny_model", "TinyTrainer"): ("odb_stream.tiny_model", "TinyTrainer"),
    ("odb_stream.stages", "DecodeImages"): ("odb_stream.stages", "MeasureImages"),
}


def test_every_module_with_old_names_is_listed() -> None:
    forwarding = {module for module, source in sources().items() if re.search(r"^__getattr__ = ", source, re.M)}
    assert {module for module, _ in MOVED} == forwarding


@pytest.mark.parametrize(("old", "new"), MOVED.items(), ids=[".".join(old) for old in MOVED])
def test_an_old_name_works_and_warns(old: tuple[str, str], new: tuple[str, str]) -> None:
    with pytest.warns(DeprecationWarning, match=re.escape(".".join(new))) as warnings:
        value = getattr(import_module(old[0]), old[1])
    assert value is getattr(import_module(new[0]), new[1])
    assert [warning.filename for warning in warnings] == [__file__]  # the user's line, not one of the package


@pytest.mark.parametrize("module", sorted({module for module, _ in MOVED}))
def test_another_name_is_an_attribute_error(module: str) -> None:
    assert not hasattr(import_module(module), "never_was_there")
