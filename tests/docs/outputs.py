"""Compares the output that a page shows with what came out."""

import difflib
import re

from fences import Mark

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
FILLING = re.compile(r"[ ─━]+")
ANYTHING = "..."


def difference(shown: str, came: str, mark: Mark) -> str:
    """A diff of the two, or nothing where they agree; a line ``...`` of the page stands for any lines."""
    left, right = _compared(shown, mark), _compared(came, mark)
    if _agree(left, right):
        return ""
    return "\n".join(difflib.unified_diff(left, right, "the page", "what came out", lineterm=""))


def _compared(text: str, mark: Mark) -> list[str]:
    if mark.but is not None:
        text = re.sub(mark.but, "(left out)", text, flags=re.M)
    if not mark.numbers:
        # Numbers of other lengths move what fills a line up.
        text = FILLING.sub(" ", NUMBER.sub("0", text))
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _agree(shown: list[str], came: list[str]) -> bool:
    if not shown:
        return not came
    if shown[0] == ANYTHING:
        return any(_agree(shown[1:], came[start:]) for start in range(len(came) + 1))
    return bool(came) and shown[0] == came[0] and _agree(shown[1:], came[1:])
