"""The index of the documentation lists every page, and each page begins by saying what it is for."""

import re

import pytest
from fences import ROOT, pages
from markdown_it import MarkdownIt

INDEX = ROOT / "docs" / "README.md"


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)#]+)\) \|", INDEX.read_text(encoding="utf-8"), re.M)
    assert len(set(listed)) == len(listed)
    there = {(ROOT / page).resolve() for page in pages()} - {INDEX.resolve()}
    assert there <= {(INDEX.parent / name).resolve() for name in listed}


@pytest.mark.parametrize("page", pages())
def test_a_page_begins_with_what_it_is_for(page: str) -> None:
    """A title, then words: no table, list, block or second heading before them."""
    kinds = [token.type for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8"))]
    assert kinds[:4] == ["heading_open", "inline", "heading_close", "paragraph_open"]
