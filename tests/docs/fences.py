"""The fenced blocks of the Markdown pages: their language, their place, and the mark in front of an output."""

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
EXECUTED = ("python", "sh")
LANGUAGES = (*EXECUTED, "text", "json", "toml", "yaml", "html")
MARK = re.compile(r"<!-- (?P<kind>same output|like)(?: but (?P<but>.+))? -->")


@dataclass(frozen=True)
class Mark:
    """How an output is compared with what the program prints; a comment, invisible on the rendered page.

    Args:
        numbers: compare the numbers too; otherwise any number matches any other.
        but: a regular expression; what it matches may differ.
    """

    numbers: bool
    but: str | None = None


@dataclass(frozen=True)
class Fence:
    """One block of a page.

    Args:
        line: the line number of its first line of content, from 1.
        mark: what the comment right before it says, if there is one.
        follows: the block right before it, with at most a mark between them.
    """

    page: str
    line: int
    language: str
    text: str
    mark: Mark | None = None
    follows: "Fence | None" = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages(root: Path = ROOT) -> list[str]:
    """The pages whose blocks must keep to the conventions, relative to the root."""
    docs = sorted(path.relative_to(root).as_posix() for path in (root / "docs").glob("*.md"))
    return ["README.md", "shards/README.md", "CONTRIBUTING.md", *docs]


def read_fences(text: str, page: str) -> list[Fence]:
    """The blocks of a page, in order; a block that is indented instead of fenced has no language."""
    found: list[Fence] = []
    before: Fence | None = None
    mark: Mark | None = None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block"):
            first = token.map[0] + (2 if token.type == "fence" else 1)
            before = Fence(page, first, token.info.strip(), token.content, mark, before)
            found.append(before)
            mark = None
        elif token.type == "html_block" and (given := MARK.fullmatch(token.content.strip())):
            mark = Mark(numbers=given["kind"] == "same output", but=given["but"])
        else:
            before = mark = None
    return found


def problems(fences: list[Fence]) -> list[str]:
    """Every breach of the conventions, a line each."""
    found = []
    for fence in fences:
        if fence.language not in LANGUAGES:
            found.append(f"{fence.place}: the language is {fence.language!r}: give one of {', '.join(LANGUAGES)}")
        shows_output = fence.language in ("text", "json")
        after_a_program = fence.follows is not None and fence.follows.language in EXECUTED
        if shows_output and after_a_program and fence.mark is None:
            found.append(f"{fence.place}: right after a program: mark it as <!-- same output --> or <!-- like -->")
        if fence.mark is not None and not (shows_output and after_a_program):
            found.append(f"{fence.place}: marked as an output, but not right after a program")
    return found
