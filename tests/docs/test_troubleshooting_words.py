"""The messages on the troubleshooting page are those of the source, and the page covers every kind of error."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fences import ROOT

from odb_stream import errors

PAGE = ROOT / "docs" / "troubleshooting.md"
ANY = "\0"
"""Marks the place of a value in a message."""


def told() -> list[str]:
    """The messages of the tables: each is in backticks in the first cell of a row of the last chapter."""
    chapter = PAGE.read_text(encoding="utf-8").split("\n## Every message by its first words\n")[1]
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", chapter, re.M)
    # A message may hold a command in backticks of its own.
    return [words for row in rows for words in re.split(r"`, `", row[1:-1])]


def templates() -> Iterator[str]:
    """Every text of the package but docstrings, with a mark for each value in it."""
    for path in sorted((ROOT / "odb_stream").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdrg]|%\.\d+f", ANY, node.value)


@pytest.fixture(scope="module")
def source() -> str:
    return "\n".join(template.replace("\n", " ") for template in templates())


@pytest.mark.parametrize("words", told())
def test_a_message_of_the_page_is_in_the_source(words: str, source: str) -> None:
    """The words between the values occur in one text of the source, in this order."""
    pattern = ".*?".join(re.escape(part) for part in words.strip("…").split("…"))
    assert re.search(pattern, source), f"no message reads {words!r}"


def test_the_page_has_words_to_look_for() -> None:
    assert len(told()) > 100
    for words in told():
        assert max(map(len, words.split("…"))) >= 6, f"{words!r} fits nearly any message"


def test_every_kind_of_error_has_its_chapter() -> None:
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)} - {"OdbStreamError"}
    headings = "\n".join(re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), re.M))
    assert kinds <= set(re.findall(r"\w+", headings))


def test_every_warning_of_the_log_is_on_the_page(source: str) -> None:
    """The first words of each call of ``logger.warning`` are in the table of warnings, but for those listed here."""
    left_out = ("found no way to connect", "all its samples are there")
    chapter = PAGE.read_text(encoding="utf-8").split("\n### Warnings in the log\n")[1]
    rows = [re.escape(words).replace("…", ".*?") for words in re.findall(r"`([^`]+)`", chapter)]
    for path in sorted((ROOT / "odb_stream").rglob("*.py")):
        for message in warnings_of(path):
            if not any(words in message for words in left_out):
                assert any(re.search(row, message) for row in rows), f"{path.name}: {message!r}"


def warnings_of(path: Path) -> Iterator[str]:
    """The texts that a module gives to ``logger.warning``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logger.warning":
            yield re.sub(r"%[sdrg]", ANY, str(ast.literal_eval(node.args[0])))
