"""Names that moved still work in their old place: each warns, and the warning gives the new place."""

import re
from importlib import import_module

import pytest
from import_graph import sources

# Old module and name -> new module and name.
MOVED = {
    ("odb_stream.resume", "merge"): ("odb_stream.checkpoint", "merge"),
    ("odb_stream.adapters.hf", "LoaderMixin"): ("odb_stream.adapters.huggingface", "LoaderMixin"),
    ("odb_stream.adapters.hf", "StreamTrainer"): ("odb_stream.adapters.huggingface", "StreamTrainer"),
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
