"""The command ``run``: streams a recipe, or trains a tiny model on it, with a live table and a report."""

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odb_stream.cli.files import require_writable
from odb_stream.cli.output import print_json, print_table
from odb_stream.cli.recipes import Recipe, ShardsOption, build_pipeline
from odb_stream.cli.report import report_table
from odb_stream.config import Budget, Layout, Oversize, require_int
from odb_stream.live import LiveView

if TYPE_CHECKING:
    from odb_stream.loader import Loader
    from odb_stream.nodes.collate import Batch
    from odb_stream.sources.pipeline import Pipeline

EXAMPLE = "odb-stream run pipelines/text_chat.py --shards 'shards/demo/chat-*.tar' --steps 100 --train"


def run(
    recipe: Recipe,
    shards: ShardsOption = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Stop after this many epochs; by default 1, or with --steps as many as they take."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Fit a tiny, randomly initialised Qwen3 or Qwen3-VL on the CPU.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the report here; with --train also the losses.")
    ] = None,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the figures of the live table there for TensorBoard.")
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", "--token-budget", help="Tokens of a batch, padding included, at most.")
    ] = 16_384,
    layout: Annotated[Layout, typer.Option(help="Rows padded to the longest, or one packed row.")] = "padded",
    window: Annotated[int, typer.Option(help="Samples held for grouping.")] = 1024,
    lookahead: Annotated[int, typer.Option(help="Groups planned in a round, at most.")] = 128,
    workers: Annotated[int, typer.Option(help="Processes that run the stages; 0 runs them inline.")] = 0,
    seed: Annotated[int, typer.Option(help="Of every draw, and of the model's weights.")] = 0,
    oversize: Annotated[
        Oversize, typer.Option(help="What becomes of a sample over the budget; a drop is counted.")
    ] = "error",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON and draw no live table.")] = False,
) -> None:
    """Stream a recipe's batches, or train a tiny model on them.

    Shows a live table while it runs, if standard error is a terminal, and prints the loader's report at the end.
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
    batches = limited(loader, steps=steps, epochs=epochs)
    title, table = f"{recipe}, {layout}, budget {budget}", False if as_json else None
    with loader, LiveView(loader, title=title, table=table, tensorboard=tensorboard) as live:
        losses = _train(batches, pipeline, seed, live) if train else _stream(batches, live)
    figures = {**loader.report(), **({"loss": losses} if train else {})}
    if as_json:
        print_json(figures)
    else:
        print_table(report_table(f"{recipe}: report", figures))
    if report is not None:
        storage.write_atomic(str(report), f"{json.dumps(figures, indent=2)}\n".encode())


def limited(loader: "Loader", *, steps: int | None, epochs: int | None) -> Iterator["Batch"]:
    """The batches of one epoch, or of as many as ``epochs`` and ``steps`` ask for; the first reached ends it."""
    if epochs is None and steps is None:
        epochs = 1
    return islice(_batches(loader, epochs), steps)


def _batches(loader: "Loader", epochs: int | None) -> Iterator["Batch"]:
    for _ in count() if epochs is None else range(epochs):
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return


def _stream(batches: Iterator["Batch"], live: LiveView) -> list[float]:
    for _ in batches:
        live.update()
    return []


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
    """Token ids that the model must know: those of the pipeline's tokenizer, else twice as many as the first batch."""
    from odb_stream.stages import Tokenize

    sizes = [stage.vocab_size for stage in pipeline.all_stages if isinstance(stage, Tokenize)]
    return max(sizes) if sizes else 2 * (int(batch["input_ids"].max()) + 1)
