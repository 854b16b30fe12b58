"""The command ``inspect``: what a recipe's samples are like, what every policy would give, which settings suit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from odb_stream.cli import inspect_page, inspect_pictures, inspect_sheets, pictures
from odb_stream.cli.files import require_writable
from odb_stream.cli.output import print_json, print_table, watched
from odb_stream.cli.pictures import require_matplotlib
from odb_stream.cli.recipes import Recipe, ShardsOption, build_pipeline
from odb_stream.config import Layout, require_int
from odb_stream.errors import ConfigError

if TYPE_CHECKING:
    from odb_stream.inspection import Accelerator
    from odb_stream.inspection.collect import Progress as Told

EXAMPLE = "odb-stream inspect pipelines/text_chat.py --memory 40GiB --model config.json --html report.html"


def inspect(
    recipe: Recipe,
    shards: ShardsOption = None,
    samples: Annotated[
        str, typer.Option(metavar="N", help="Records to read, in the shuffled order; all (or 0) for the whole epoch.")
    ] = "2000",
    world_size: Annotated[int, typer.Option(help="Data-parallel ranks of the simulations.")] = 8,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", "--token-budget", help="Tokens of one rank's step; by default what --memory allows, or 16384."
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Samples held for grouping, by the policy anchored.")] = 1024,
    lookahead: Annotated[int, typer.Option(help="Groups planned in a round, at most.")] = 128,
    layout: Annotated[Layout, typer.Option(help="For which window and lookahead are suggested.")] = "padded",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of the policy fixed.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes that run the stages; 0 runs them inline.")] = 0,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of one accelerator, such as 40GiB: suggests a budget."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.json", help="The model's transformers configuration, or its folder."),
    ] = None,
    token_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes that a token of a step takes, as you measured them.")
    ] = None,
    bytes_per_parameter: Annotated[
        float,
        typer.Option(help="Weights, gradients, optimizer: 16 is bf16 with fp32 AdamW and master weights, unsharded."),
    ] = 16.0,
    checkpointing: Annotated[
        bool,
        typer.Option("--checkpointing/--no-checkpointing", help="Activations are computed anew in the backward pass."),
    ] = False,
    host_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory of one rank for the samples that wait.")
    ] = "4GiB",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page with all tables and pictures.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write the pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the tables.")] = False,
) -> None:
    """Measure a recipe's samples: lengths, drops, times, images; compare policies on them and suggest settings.

    Reads as one rank does. Nothing is trained, and images are decoded only to see how long that takes.
    """
    from odb_stream.inspection import inspect as look
    from odb_stream.inspection import parse_bytes

    if budget is not None:
        require_int("--budget", budget, minimum=1)
    _check_files(html, png)
    number = _samples(samples)
    accelerator = _accelerator(memory, model, token_bytes, bytes_per_parameter, checkpointing)
    host = parse_bytes("--host-memory", host_memory)
    pipeline = build_pipeline(recipe, shards)
    with _bar(on=watched() and not as_json) as told:
        found = look(
            pipeline,
            samples=number,
            seed=seed,
            workers=workers,
            budget=budget,
            layout=layout,
            window=window,
            lookahead=lookahead,
            batch_size=batch_size,
            world_size=world_size,
            accelerator=accelerator,
            host_memory=host,
            progress=told,
        ).plain()
    _write(found, f"{recipe}: {found['samples']['read']:,} records", html, png)
    if as_json:
        print_json(found)
    else:
        for sheet in inspect_sheets.sheets(found):
            print_table(sheet.table())


def _samples(text: str) -> int | None:
    """How many records to read; None for all."""
    if text in ("all", "0"):
        return None
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"--samples is {text!r}, but must be a whole number, or all")
    return int(text)


def _accelerator(
    memory: str | None, model: Path | None, token_bytes: str | None, bytes_per_parameter: float, checkpointing: bool
) -> "Accelerator | None":
    """The accelerator that the options tell of. Raises ConfigError for what says nothing without --memory."""
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


def _check_files(html: Path | None, png: Path | None) -> None:
    """Raise ConfigError, before the long run, for what could not be written or drawn."""
    for option, path in (("--html", html), ("--png", png)):
        require_writable(option, path)
        if path is not None:
            require_matplotlib(option)


def _write(found: dict[str, Any], title: str, html: Path | None, png: Path | None) -> None:
    """Write the page and the pictures that were asked for."""
    from odb_stream import storage

    if html is not None:
        storage.write_atomic(str(html), inspect_page.page(found, title=title).encode())
    if png is not None:
        storage.write_atomic(str(png), pictures.png(inspect_pictures.pictures(found), title=title))


@contextmanager
def _bar(*, on: bool) -> "Iterator[Told]":
    """A bar for each thing that is done one after the other, drawn on standard error."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), disable=not on) as bar:
        tasks: dict[str, TaskID] = {}

        def told(words: str, done: int, total: int | None) -> None:
            if words not in tasks:
                tasks[words] = bar.add_task(words, total=total)
            bar.update(tasks[words], completed=done)

        yield told
