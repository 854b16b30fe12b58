"""The pages keep to the conventions, and every program and command on them runs and gives what the page shows."""

import json
import re
from pathlib import Path

import pytest
from fences import EXECUTED, ROOT, Fence, pages, problems, read_fences
from markdown_it import MarkdownIt
from preludes import NOT_RUN, PRELUDES, names_a_store, run_as_listed

PAGES = pages()
INDEX = ROOT / "docs" / "README.md"


def fences_of(page: str) -> list[Fence]:
    return read_fences((ROOT / page).read_text(encoding="utf-8"), page)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_names_its_language_and_json_parses(page: str) -> None:
    fences = fences_of(page)
    assert not problems(fences), "\n".join(problems(fences))
    for fence in fences:
        if fence.language == "json":  # one value, or one a line
            try:
                json.loads(fence.text)
            except ValueError:
                for line in fence.text.splitlines():
                    json.loads(line)


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)#]+)\) \|", INDEX.read_text(encoding="utf-8"), re.M)
    assert len(set(listed)) == len(listed)
    there = {(ROOT / page).resolve() for page in PAGES} - {INDEX.resolve()}
    assert there <= {(INDEX.parent / name).resolve() for name in listed}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_it_is_for(page: str) -> None:
    """A title, then words: no table, list, block or second heading before them."""
    kinds = [token.type for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8"))]
    assert kinds[:4] == ["heading_open", "inline", "heading_close", "paragraph_open"]


def test_what_does_not_run_and_preludes_are_of_pages() -> None:
    assert set(NOT_RUN) | set(PRELUDES) <= set(PAGES)
    for page, blocks in NOT_RUN.items():
        texts = [fence.text for fence in fences_of(page) if fence.language in EXECUTED]
        for text, reason in blocks.items():
            assert text in texts, f"no block of {page} is {text!r}"
            assert reason


def test_ranks_that_share_a_pipe_write_whole_lines() -> None:
    """Under torchrun ``print`` writes a line and its end separately, so those of two ranks are sometimes mixed."""
    several = re.compile(r"^torchrun .*--nproc_per_node [2-9] (\w+\.py) \| sort$", re.M)
    found = 0
    for page in PAGES:
        fences = fences_of(page)
        for name in {name for fence in fences for name in several.findall(fence.text)}:
            (program,) = (fence.text for fence in fences if fence.text.startswith(f"# file: {name}\n"))
            assert "sys.stdout.write(" in program, (page, name)
            assert "print(" not in program, (page, name)
            found += 1
    assert found >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fences = fences_of(page)
    store = request.getfixturevalue("s3").endpoint if names_a_store(fences) else None
    found = run_as_listed(page, fences, tmp_path / "page", store)
    assert not found, "\n\n".join(map(str, found))
