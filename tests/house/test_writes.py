"""No attribute of another object is written from outside: the object has a method for it, or is given the value."""

import ast
from collections.abc import Iterator

import pytest
from import_graph import sources

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
