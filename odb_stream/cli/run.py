"""The command ``run``: streams a recipe or trains a tiny model on it, with a live table and a report."""

import json
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from odb_stream.cli.options import (
    LayoutOption,
    LookaheadOption,
    Recipe,
    RecipeShards,
    WindowOption,
    WorkersOption,
    require_writable,
)
from odb_stream.cli.output import print_json, print_table
from odb_stream.cli.recipes import build_pipeline
from odb_stream.config import DEFAULT_BUDGET, Budget, Oversize, Settings, require_int
from odb_stream.live import LiveView

if TYPE_CHECKING:
    from odb_stream.loader import Loader
    from odb_stream.nodes.collate import Batch
    from odb_stream.sources.pipeline import Pipeline

EXAMPLE = "odb-stream run pipelines/text_chat.py --shards 'shards/demo/chat-*.tar' --steps 100 --train"


def run(
    recipe: Recipe,
    shards: RecipeShards = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Stop after this many epochs; by default 1, or with --steps as many as the steps take."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train a tiny, randomly initialised Qwen3 or Qwen3-VL on the CPU.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the report here, with --train including the losses.")
    ] = None,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the figures of the live table here for TensorBoard.")
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", "--token-budget", help="Most tokens in a batch, padding included.")
    ] = DEFAULT_BUDGET,
    layout: LayoutOption = Settings.layout,
    window: WindowOption = Settings.window,
    lookahead: LookaheadOption = Settings.lookahead,
    workers: WorkersOption = 0,
    seed: Annotated[int, typer.Option(help="Seed of every draw, and of the model's weights.")] = Settings.seed,
    oversize: Annotated[
        Oversize, typer.Option(help="What to do with a sample over the budget; drops are counted.")
    ] = Settings.oversize,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, and draw no live table.")] = False,
) -> None:
    """Stream a recipe's batches, or train a tiny model on them.

    Shows a live table during the run if standard error is a terminal, and prints the loader's report at the end.
    """
    from odb_stream import storage
    from odb_stream.loader import Loader
    from odb_stream.loader.startup import plan_in_words

    for option, value in (("--steps", steps), ("--epochs", epochs), ("--budget", budget)):
        if value is not None:
            require_int(option, value, minimum=1)
    require_writable("--report", report)
    pipeline = build_pipeline(recipe, shards)
    loader = Loader(
        pipeline,
        budget=Budget(budget),
        layout=layout,
        window=window,
        lookahead=lookahead,
        workers=workers,
        seed=seed,
        oversize=oversize,
    )
    typer.echo(plan_in_words(loader.world, loader.plan), err=True)
    batches = islice(_batches(loader, 1 if epochs is None and steps is None else epochs), steps)
    title, table = f"{recipe}, {layout}, budget {budget}", False if as_json else None
    with loader, LiveView(loader, title=title, table=table, tensorboard=tensorboard) as live:
        trained = {"loss": _train(batches, pipeline, seed, live)} if train else {}
        for _ in batches:  # without training: only streamed
            live.update()
    figures = {**loader.report(), **trained}
    if as_json:
        print_json(figures)
    else:
        print_table(report_table(f"{recipe}: report", figures))
    if report is not None:
        storage.write_atomic(str(report), f"{json.dumps(figures, indent=2)}\n".encode())


def _batches(loader: "Loader", epochs: int | None) -> Iterator["Batch"]:
    """The batches of this many epochs; None never ends."""
    for _ in count() if epochs is None else range(epochs):
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:  # as every later epoch: without this, --steps alone would loop forever
            return


def _train(batches: Iterator["Batch"], pipeline: "Pipeline", seed: int, live: LiveView) -> list[float]:
    from odb_stream.nodes.collate import pop_step
    from odb_stream.stages.visual import expander
    from odb_stream.tiny_model import TinyTrainer

    expand = expander(pipeline.all_stages)
    losses: list[float] = []
    trainer: TinyTrainer | None = None
    for batch in batches:
        if trainer is None:
            trainer = TinyTrainer(vocabulary(pipeline, batch), seed, expand)
        losses.append(trainer.train(batch, pop_step(batch)))
        live.update(losses[-1])
    return losses


def vocabulary(pipeline: "Pipeline", batch: "Batch") -> int:
    """Size of the model's vocabulary: the tokenizer's, or else twice the largest id of the first batch.

    Without a tokenizer nothing bounds the ids, and later batches may have larger ones than the first.
    """
    from odb_stream.stages import Tokenize

    sizes = [stage.vocab_size for stage in pipeline.all_stages if isinstance(stage, Tokenize)]
    return max(sizes) if sizes else 2 * (int(batch["input_ids"].max()) + 1)


def report_table(title: str, report: Mapping[str, Any]) -> Table:
    """A report as a table, one figure per row; figures over all ranks only if they differ from this rank's."""
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right", min_width=12)
    for name, value in report.items():
        if name == "global" and all(report.get(key) == figure for key, figure in value.items()):
            continue
        if isinstance(value, Mapping):
            if not value:
                table.add_row(name, "none")
            for key, figure in value.items():
                if isinstance(figure, Mapping):
                    figure = ", ".join(f"{number:,} {word}" for word, number in figure.items())
                table.add_row(f"{name.replace('_', ' ')}: {key}", _figure(key, figure))
        elif isinstance(value, list):
            table.add_row(f"{name}: first, last", f"{value[0]:.4f}, {value[-1]:.4f}" if value else "-")
        else:
            table.add_row(name.replace("_", " "), _figure(name, value))
    return table


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:.2%}" if name in ("padding_ratio", "real_utilisation") else f"{value:.3f}"
