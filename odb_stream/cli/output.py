"""Output of the commands: results to standard output, as a table or JSON; progress to standard error on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_WIDTH = 140
"""Width, in columns, of a table that is not printed to a terminal."""

Advance = Callable[[int], None]
T = TypeVar("T")


def watched() -> bool:
    """Whether standard error is a terminal; otherwise no progress bar or live table is drawn."""
    return sys.stderr.isatty()


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or ``PLAIN_WIDTH`` elsewhere. Text is printed literally, brackets too."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)


def print_rows(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column holds names, which are never cut, and whose other columns hold figures."""
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="ellipsis" if number else "fold")
    for row in rows:
        table.add_row(*row)
    print_table(table)


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """A progress bar for the block, if watched. Call the function it gives with each amount that is done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), "{task.percentage:>3.0f}%")
    console = Console(stderr=True, markup=False, emoji=False)
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not watched())
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def tracked(description: str, items: Sequence[T]) -> Iterator[T]:
    """The items, with a progress bar that counts them."""
    with progress(description, total=len(items)) as advance:
        for item in items:
            yield item
            advance(1)
