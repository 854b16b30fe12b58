"""The pages keep to the conventions, and every program and command on them runs and gives what the page shows."""

import json
import re
from pathlib import Path

import pytest
from fences import EXECUTED, ROOT, Fence, pages, problems, read_fences
from preludes import NOT_RUN, PRELUDES, names_a_store, run_as_listed

PAGES = pages()


def fences_of(page: str) -> list[Fence]:
    return read_fences((ROOT / page).read_text(encoding="utf-8"), page)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_names_its_language(page: str) -> None:
    assert not problems(fences_of(page)), "\n".join(problems(fences_of(page)))


@pytest.mark.parametrize("page", PAGES)
def test_json_blocks_parse(page: str) -> None:
    """Each is one value, or one a line."""
    for fence in fences_of(page):
        if fence.language == "json":
            try:
                json.loads(fence.text)
            except ValueError:
                for line in fence.text.splitlines():
                    json.loads(line)


def test_what_does_not_run_is_on_a_page() -> None:
    assert set(NOT_RUN) <= set(PAGES)
    for page, blocks in NOT_RUN.items():
        texts = [fence.text for fence in fences_of(page) if fence.language in EXECUTED]
        for text, reason in blocks.items():
            assert text in texts, f"no block of {page} is {text!r}"
            assert reason


def test_preludes_are_of_pages() -> None:
    assert set(PRELUDES) <= set(PAGES)


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
