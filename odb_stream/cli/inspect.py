"""The command ``inspect``: measures the samples of a recipe, compares policies, and suggests settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from odb_stream.cli.options import (
    BatchSizeOption,
    LookaheadOption,
    Recipe,
    RecipeShards,
    WorkersOption,
    require_drawable,
)
from odb_stream.cli.output import print_json, print_table, watched
from odb_stream.cli.recipes import build_pipeline
from odb_stream.config import Layout, Settings, require_int
from odb_stream.errors import ConfigError

if TYPE_CHECKING:
    from odb_stream.inspection import Accelerator
    from odb_stream.inspection.collect import ReportProgress

EXAMPLE = "odb-stream inspect pipelines/text_chat.py --memory 40GiB --model config.json --html report.html"


def inspect(
    recipe: Recipe,
    shards: RecipeShards = None,
    samples: Annotated[
        str, typer.Option(metavar="N", help="Records to read, in the shuffled order; all (or 0) for the whole epoch.")
    ] = "2000",
    world_size: Annotated[int, typer.Option(help="Data-parallel ranks in the simulations.")] = 8,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            "--token-budget",
            help="Tokens of one rank's step; by default the budget that --memory allows, or 16384.",
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Samples held for grouping, by the policy anchored.")] = Settings.window,
    lookahead: LookaheadOption = Settings.lookahead,
    layout: Annotated[
        Layout, typer.Option(help="Layout for which window and lookahead are suggested.")
    ] = Settings.layout,
    batch_size: BatchSizeOption = 8,
    workers: WorkersOption = 0,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of one accelerator, such as 40GiB: suggests a budget."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.json", help="The model's transformers configuration, or its folder."),
    ] = None,
    token_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes per token of a step, as you measured them.")
    ] = None,
    bytes_per_parameter: Annotated[
        float,
        typer.Option(help="Weights, gradients, optimizer: 16 is bf16 with fp32 AdamW and master weights, unsharded."),
    ] = 16.0,
    checkpointing: Annotated[
        bool,
        typer.Option("--checkpointing/--no-checkpointing", help="The backward pass recomputes activations."),
    ] = False,
    host_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory of one rank for the samples that wait.")
    ] = "4GiB",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page with all tables and pictures.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write the pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tables.")] = False,
) -> None:
    """Measure the samples of a recipe: lengths, drops, times, images. Compare policies on them and suggest settings.

    Reads as a single rank does. Trains nothing, and decodes a few images only to time it.
    """
    from odb_stream import storage
    from odb_stream.inspection import inspect as measure
    from odb_stream.inspection import page, parse_bytes, pictures, tables

    if budget is not None:
        require_int("--budget", budget, minimum=1)
    require_drawable("--html", html)
    require_drawable("--png", png)
    count = _samples(samples)
    accelerator = _accelerator(memory, model, token_bytes, bytes_per_parameter, checkpointing)
    host_bytes = parse_bytes("--host-memory", host_memory)
    pipeline = build_pipeline(recipe, shards)
    with _bar(on=watched() and not as_json) as report_progress:
        found = measure(
            pipeline,
            samples=count,
            seed=seed,
            workers=workers,
            budget=budget,
            layout=layout,
            window=window,
            lookahead=lookahead,
            batch_size=batch_size,
            world_size=world_size,
            accelerator=accelerator,
            host_memory=host_bytes,
            progress=report_progress,
        )
    title = f"{recipe}: {found.samples.read:,} records"
    if html is not None:
        storage.write_atomic(str(html), page.page(found, title=title).encode())
    if png is not None:
        storage.write_atomic(str(png), pictures.png(pictures.all_pictures(found), title=title))
    if as_json:
        print_json(found.plain())
    else:
        for table in tables.all_tables(found):
            print_table(table.for_terminal())


def _samples(text: str) -> int | None:
    """The number of records to read; None for all."""
    if text in ("all", "0"):
        return None
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"--samples is {text!r}, but must be an integer of at least 0, or all")
    return int(text)


def _accelerator(
    memory: str | None, model: Path | None, token_bytes: str | None, bytes_per_parameter: float, checkpointing: bool
) -> "Accelerator | None":
    """The accelerator that the options describe. Raises ConfigError for options that need --memory."""
    from odb_stream.inspection import Accelerator, parse_bytes

    if memory is None:
        given = "--model" if model is not None else "--token-bytes" if token_bytes is not None else None
        if given is not None:
            raise ConfigError(f"{given} was given without --memory: give the accelerator's memory, such as 40GiB")
        return None
    return Accelerator(
        memory=parse_bytes("--memory", memory),
        model=model,
        token_bytes=None if token_bytes is None else parse_bytes("--token-bytes", token_bytes),
        bytes_per_parameter=bytes_per_parameter,
        checkpointing=checkpointing,
    )


@contextmanager
def _bar(*, on: bool) -> "Iterator[ReportProgress]":
    """One progress bar per task, drawn on standard error."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), disable=not on) as bar:
        tasks: dict[str, TaskID] = {}

        def report_progress(task: str, done: int, total: int | None) -> None:
            if task not in tasks:
                tasks[task] = bar.add_task(task, total=total)
            bar.update(tasks[task], completed=done)

        yield report_progress
