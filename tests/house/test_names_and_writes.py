"""What the source must keep to: names that users may import, types that mean one thing, no writes to another object."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module

import pytest
from import_graph import sources

import odb_stream as odb

# The names that users may import. Changing this list, or that of the moved ones, is a decision.
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


# "module: attribute" -> why it is written: libraries whose interface is an attribute. An entry that is no longer needed
# fails the test as well.
INTERFACES = {
    "accelerate: accelerator.step": "accelerate counts its accumulation in this attribute alone",
    "huggingface.callback: state.epoch": "a callback of transformers answers by writing the state it is given",
    "huggingface.callback: state.max_steps": "as above",
    "huggingface.callback: state.num_train_epochs": "as above",
    "huggingface.callback: control.should_epoch_stop": "a callback of transformers answers by writing the control",
    "huggingface.progress: scheduler.lr_lambdas": "torch's LambdaLR takes other functions in no other way",
    "huggingface.trainer: self.args.ignore_data_skip": "what the Trainer does follows from its arguments",
    "huggingface.trainer: self.args.average_tokens_across_devices": "as above",
    "stages.tokenize: self._tokenizer.encode_special_tokens": "a property of tokenizers, which has no method for it",
    "stages.tokenize: tokenizer.post_processor": "as above",
}

OWN = ("self", "cls")


def written(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that statements below a node write or delete, functions inside it left out."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                yield node
            yield from written(node)


def made_here(function: ast.AST) -> set[str]:
    """The variables of a function that hold what a constructor, or a classmethod such as ``Size.of``, has just made."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made_by = ast.unparse(node.value.func)
            words = made_by.replace("_", "").split(".")
            if made_by.startswith("type(") or any(word[:1].isupper() or word == "cls" for word in words):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def foreign_writes(module: str, source: str) -> Iterator[str]:
    """Each attribute of another object that a module writes, as ``module: attribute``, its name shortened."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in (tree, *functions):
        own = made_here(function) | set(OWN) if function is not tree else set(OWN)
        for target in written(function):
            if not (isinstance(target.value, ast.Name) and target.value.id in own):
                yield f"{module.removeprefix('odb_stream.').removeprefix('adapters.')}: {ast.unparse(target)}"


def test_no_attribute_of_another_object_is_written() -> None:
    found = {place for module, source in sources().items() for place in foreign_writes(module, source)}
    known = INTERFACES.keys()
    assert found == known, f"new: {sorted(found - known)}; no longer needed: {sorted(known - found)}"


@pytest.mark.parametrize(
    "body",
    [
        "def f(other):\n    other.number = 1",
        "def f(other):\n    other.number += 1",
        "def f(other):\n    other.number, x = 1, 2",
        "def f(other):\n    del other.number",
        "def f(other):\n    for other.number in range(3): pass",
        "class A:\n    def f(self):\n        self.other.number = 1",
        "def f(others):\n    other = others.first()\n    other.number = 1",
        "def f():\n    other = Other()\n    def g(other):\n        other.number = 1",
        "import module\nmodule.number = 1",
    ],
)
def test_a_write_from_outside_is_caught(body: str) -> None:
    assert [place.split(".")[-1] for place in foreign_writes("odb_stream.bad", body)] == ["number"]


@pytest.mark.parametrize(
    "body",
    [
        "class A:\n    def f(self):\n        self.number = 1",
        "class A:\n    @classmethod\n    def f(cls):\n        new = cls(1)\n        new.number = 1",
        "def f():\n    other = Other()\n    other.number = 1",
        "def f():\n    other = module.Other.of(3)\n    other.number = 1",
        "class A:\n    def f(self):\n        new = type(self)(1)\n        new.number = 1",
        "def f(other):\n    other['number'] = 1",
        "def f(other):\n    return other.number",
    ],
)
def test_an_object_may_write_to_itself_and_a_maker_to_what_it_made(body: str) -> None:
    assert list(foreign_writes("odb_stream.sound", body)) == []


def types_in(source: str) -> Iterator[str]:
    """The types that a module defines at its top: classes, and aliases that begin with a capital."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                # CONSTANTS are no types, and every module may have a type variable T of its own.
                named = isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper()
                variable = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("TypeVar")
                if named and not variable:
                    yield ast.unparse(target)


def several(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Type name -> the modules that define it, where there are several."""
    found = defaultdict(list)
    for module, source in modules.items():
        for name in types_in(source):
            found[name].append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_type_name_means_one_thing() -> None:
    assert several(sources()) == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class Place: pass", "Place"),
        ("class Place(NamedTuple):\n    number: int", "Place"),
        ("Place = tuple[int, int]", "Place"),
        ("Place: TypeAlias = tuple[int, int]", "Place"),
    ],
)
def test_every_form_of_a_type_is_found(source: str, name: str) -> None:
    assert several({"one": source, "two": "class Place: pass"}) == {name: ["one", "two"]}


@pytest.mark.parametrize("source", ["T = TypeVar('T')", "LIMIT = 3", "def f():\n    class Place: pass", "place = 1"])
def test_what_is_no_type_of_the_module_does_not_count(source: str) -> None:
    assert several({"one": source, "two": source}) == {}


def test_the_state_of_a_run_is_typed() -> None:
    tree = ast.parse(sources()["odb_stream.checkpoint.state"])
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"] == []
