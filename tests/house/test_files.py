"""The form of the files: a first line that says the file's job, and a length that one can read in one go."""

import ast

import pytest
from import_graph import ROOT, sources

MOST_LINES = 300
MODULES = sources()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_starts_with_a_docstring_of_its_job(module: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[module]))
    assert docstring, f"{module} has no docstring"
    assert docstring.splitlines()[0].rstrip().endswith((".", ":", ";", ",")) or len(docstring.splitlines()) > 1


@pytest.mark.parametrize("module", MODULES)
def test_a_module_fits_in_one_reading(module: str) -> None:
    assert len(MODULES[module].splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run"])
def test_the_house_has(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_gives_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
