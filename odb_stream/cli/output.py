"""How the commands speak: results to standard output as a table or JSON, progress to a terminal's standard error."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_WIDTH = 140
"""Columns of a table that does not go to a terminal."""

Advance = Callable[[int], None]


def watched() -> bool:
    """Whether somebody watches standard error: only then are progress bars and live tables drawn."""
    return sys.stderr.isatty()


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal, or wide enough to be read by a program; text stands as it is."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """A progress bar for the block, none unless watched; call what it gives with the amount just done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), "{task.percentage:>3.0f}%")
    console = Console(stderr=True, markup=False, emoji=False)
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not watched())
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
