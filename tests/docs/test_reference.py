"""The reference is what the docstrings say now, is the same on every machine, and holds every public name."""

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from fences import ROOT

PAGE = ROOT / "docs" / "reference.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("reference") / "reference.md"
    tool = ROOT / "tools" / "make_reference.py"
    # In another folder and in a narrow terminal, neither of which may show in the page.
    done = subprocess.run(
        [sys.executable, str(tool), str(page)], cwd=page.parent, timeout=300,
        env={"PATH": "", "COLUMNS": "40", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return page.read_text(encoding="utf-8")


def test_the_committed_page_is_the_one_that_is_made(made: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == made, "run `make reference` and commit docs/reference.md"


def test_nothing_of_this_machine_is_in_it(made: str) -> None:
    assert not re.search(r"0x[0-9a-f]{6}", made)
    for path in (ROOT, Path(sys.prefix), Path.home()):
        assert f"{path}/" not in made


@pytest.mark.parametrize("module", ["odb_stream", "odb_stream.stages", "odb_stream.inspection", "odb_stream.live"])
def test_every_public_name_has_its_place(module: str, made: str) -> None:
    names = set(importlib.import_module(module).__all__) - {"stages"}
    assert len(names) > 0
    assert names == set(re.findall(rf"^### `{re.escape(module)}\.(\w+)`$", made, re.M))


def test_every_name_is_imported_from_where_the_page_says(made: str) -> None:
    entries = re.findall(r"^### `([\w.]+)\.(\w+)`$", made, re.M)
    assert len(entries) > 50
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # an old place is not the one to give
        for module, name in entries:
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_every_entry_has_words(made: str) -> None:
    """Something beyond signature and base class: a docstring."""
    entries = re.split(r"^#+ ", made, flags=re.M)[1:]
    assert len(entries) > 100
    for entry in entries:
        heading, _, rest = entry.partition("\n")
        words = re.sub(r"```text[^`]*```|^Based on .*$", "", rest, flags=re.M)
        assert len(words.split()) >= 2, f"{heading} has no docstring"


def test_the_contents_lead_to_headings(made: str) -> None:
    listed = re.findall(r"^ *- \[(.+)\]\(#(.+)\)$", made, re.M)
    assert [words for words, _ in listed] == re.findall(r"^#{2,3} (.+)$", made, re.M)
    targets = [target for _, target in listed]
    assert len(set(targets)) == len(targets)
