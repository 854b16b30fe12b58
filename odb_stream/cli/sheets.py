"""Sheets: small tables of text, written once and shown in the terminal or on a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A table: one heading a column, rows of as many cells; the first column holds names, the others figures.

    ``words`` names the columns, by their place, that hold words in place of figures, and are aligned so.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: tuple[int, ...] = ()

    def table(self) -> Table:
        """The sheet for the terminal."""
        table = Table(title=self.title, caption=self.note or None, show_header=any(self.headings))
        for place, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if self.is_words(place) else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def is_words(self, place: int) -> bool:
        """Whether a column holds words."""
        return place == 0 or place in self.words


def number(value: float | int) -> str:
    """A number as short as it can be told: whole from 100 on, else with three digits."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """A part of 1 in per cent."""
    return f"{value:.1%}"


def size(count: float) -> str:
    """Bytes in the unit that suits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def bars(edges: Sequence[int], counts: Sequence[int], *, rows: int = 16, width: int = 40) -> tuple[Any, ...]:
    """A histogram as rows of text, neighbouring bins taken together until few rows are left."""
    step = -(-len(counts) // rows)
    starts = range(0, len(counts), step)
    sums = [sum(counts[start : start + step]) for start in starts]
    most = max(sums)
    return tuple(
        (
            f"{edges[start]:,} to {edges[min(start + step, len(counts))] - 1:,}",
            f"{count:,}",
            "█" * round(width * count / most) or ("▏" if count else ""),
        )
        for start, count in zip(starts, sums, strict=True)
    )
