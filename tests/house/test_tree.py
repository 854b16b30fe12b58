"""The tree says what is where: the README lists the folders, tests mirror them, and a file begins with its job."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import ROOT, sources

import odb_stream
from odb_stream import stages

# Folders of tests that no folder of the package stands for.
BESIDE_THE_PACKAGE = {"system", "support", "docs", "house", "tools"}

# The folders that a sample passes, in this order.
WAY_OF_A_SAMPLE = ("storage", "shards", "sources", "stages", "prepare", "workers", "nodes", "loader")

# Test files that import nothing of their folder -> why they stand there all the same.
ELSEWHERE = {
    "adapters/test_trainer_ranks.py": "trains with every trainer that owns the loop; a parameter gives their names",
    "checkpoint/test_resume_loader.py": "checkpoints as the user of a Loader sees them",
}

TESTS = sorted(
    path.relative_to(ROOT / "tests")
    for path in (ROOT / "tests").rglob("test_*.py")
    if path.relative_to(ROOT / "tests").parts[0] not in BESIDE_THE_PACKAGE
)
MODULES = sources()


def test_the_readme_lists_the_folders_in_the_order_of_the_data() -> None:
    rows = re.findall(r"^\| (`odb_stream/.*?) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    listed = [row.removeprefix("`odb_stream/").removesuffix("/`") for row in rows]
    folders = {path.parent.name for path in (ROOT / "odb_stream").glob("*/__init__.py")}
    assert sorted(listed) == sorted(folders)
    assert [name for name in listed if name in WAY_OF_A_SAMPLE] == list(WAY_OF_A_SAMPLE)


def test_the_tests_mirror_the_package() -> None:
    folders = {path.parent for path in TESTS} - {Path()}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / "odb_stream" / folder).is_dir()] == []


def used(path: Path) -> set[str]:
    """The modules of the package that a file uses; a public name, such as ``odb.Mix``, counts as its module.

    The text is read, not the syntax tree: programs that run in another process, and names to patch, are strings.
    """
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"\bodb_stream(?:\.\w+)+", text))
    for short, package in (("odb", odb_stream), ("stages", stages)):
        names = re.findall(rf"\b{short}\.(\w+)", text)
        for listed in re.findall(rf"^ *from {package.__name__} import (\([^)]*\)|.*)$", text, re.M):
            names += re.findall(r"\w+", listed)
        found |= {getattr(getattr(package, name), "__module__", "") for name in {*names} & {*package.__all__}}
    for package, listed in re.findall(r"^ *from (odb_stream(?:\.\w+)*) import (\([^)]*\)|.*)$", text, re.M):
        found |= {f"{package}.{name}" for name in re.findall(r"\w+", listed)} & MODULES.keys()
    return found


def helpers(path: Path) -> Iterator[Path]:
    """The files that do the importing for a test: helpers, its conftest, and the example programs that it runs."""
    text = path.read_text(encoding="utf-8")
    beside = {f"{name}.py" for name in re.findall(r"^ *(?:from|import) (\w+)", text, re.M)}
    beside |= set(re.findall(r"\w+\.py\b", text))
    for folder in (ROOT / "tests" / "support", ROOT / "pipelines"):
        yield from (folder / name for name in beside if (folder / name).exists())
    yield from path.parent.glob("conftest.py")


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_a_test_stands_in_the_folder_of_what_it_imports(test: Path) -> None:
    path = ROOT / "tests" / test
    folder = ".".join(("odb_stream", *test.parent.parts))
    found = {module for file in (path, *helpers(path)) for module in used(file)}
    inside = any(f"{module}.".startswith(f"{folder}.") for module in found)
    if test.parent == Path():  # tests of the modules that stand directly inside the package
        inside = any(module.count(".") == 1 and module in MODULES for module in found)
    assert inside == (str(test) not in ELSEWHERE), sorted(found)


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


def test_a_file_starts_with_a_line_about_its_job_and_is_not_too_long() -> None:
    assert [name for name, source in FILES.items() if not has_a_first_line(source)] == []
    assert [name for name, source in FILES.items() if len(source.splitlines()) > MOST_LINES] == []
    for folder in ("odb_stream", "tests", "tools"):  # the files are indeed looked at
        assert sum(Path(name).parts[0] == folder for name in FILES) > 10


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run"])
def test_the_house_has(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_gives_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
