"""Globs on a store give what the standard library's glob gives on the same files in a folder."""

import glob
import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.storage.globs import has_magic, matches

FILES = (
    "a.tar", "b.tar", "b1.tar", ".hidden.tar", "[x].tar", "x.tar",
    "d/a.tar", "d/b.tar", "d/.hidden.tar", "d/e/a.tar", "d/e/f/a.tar", "d/.secret/a.tar",
    "d2/a.tar", "d2/e/b.tar", "d10/e/b-000.tar", "d10/e/b-001.tar", ".dot/a.tar",
)  # fmt: skip

PARTS = st.sampled_from([
    "*", "**", "?.tar", "*.tar", "a.tar", "d", "e", "d*",
    "[a-b]*", "[!a]*", ".*", "b-00[0-1].tar", "**.tar", "[[]x].tar",
])  # fmt: skip


def listed(folder: str) -> tuple[list[str], list[str]]:
    inside = [PurePosixPath(name) for name in FILES if not folder or name.startswith(f"{folder}/")]
    depth = len(PurePosixPath(folder).parts)
    folders = {"/".join(path.parts[: depth + 1]) for path in inside if len(path.parts) > depth + 1}
    return sorted(folders), [str(path) for path in inside if len(path.parts) == depth + 1]


def walked(folder: str) -> list[str]:
    return [name for name in FILES if not folder or name.startswith(f"{folder}/")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@given(parts=st.lists(PARTS, min_size=1, max_size=4))
def test_the_same_files_as_in_a_folder(tree: Path, parts: list[str]) -> None:
    pattern = "/".join(parts)
    found = glob.glob(pattern, root_dir=tree, recursive=True)
    expected = sorted({os.path.normpath(name) for name in found if (tree / name).is_file()})
    assert sorted(matches(pattern, listed, walked)) == expected


def test_a_name_that_is_the_pattern_itself_comes_first() -> None:
    assert matches("[x].tar", listed, walked) == ["[x].tar"]


def test_only_the_folders_that_can_hold_a_match_are_listed() -> None:
    asked: list[str] = []

    def listing(folder: str) -> tuple[list[str], list[str]]:
        asked.append(folder)
        return listed(folder)

    assert set(matches("d*/e/b*.tar", listing, walked)) == {"d2/e/b.tar", "d10/e/b-000.tar", "d10/e/b-001.tar"}
    assert asked[0] == ""
    assert set(asked[1:]) == {"d/e", "d2/e", "d10/e"}


def test_what_is_a_pattern() -> None:
    assert not has_magic("a/b{0..3}.tar")
    assert all(has_magic(pattern) for pattern in ("a*", "a?", "[a]", "**/a"))
