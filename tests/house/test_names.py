"""A type name means one thing in the package, and the state of a run says its types."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest
from import_graph import sources


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
