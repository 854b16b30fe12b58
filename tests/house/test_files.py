"""The form of the files: a first line that says the file's job, and no more lines than one looks through."""

import ast
from pathlib import Path

import pytest
from import_graph import ROOT

# A file holds one idea, whatever its length; nearly always more than this is two.
MOST_LINES = 500
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("odb_stream", "pipelines", "tests", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def has_a_first_line(source: str) -> bool:
    """Whether the docstring's first line is a sentence that is complete, or goes on below."""
    lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    return bool(lines) and (lines[0].rstrip().endswith((".", ":", ";", ",", "!", "``")) or len(lines) > 1)


def test_a_file_starts_with_a_line_about_its_job() -> None:
    assert [name for name, source in FILES.items() if not has_a_first_line(source)] == []


def test_a_file_is_not_too_long() -> None:
    assert [name for name, source in FILES.items() if len(source.splitlines()) > MOST_LINES] == []


@pytest.mark.parametrize("folder", ["odb_stream", "tests", "tools"])
def test_the_files_are_looked_at(folder: str) -> None:
    assert sum(Path(name).parts[0] == folder for name in FILES) > 10


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run"])
def test_the_house_has(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_gives_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
