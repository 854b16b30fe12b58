"""The command ``simulate``: runs batching policies on an array of sample lengths, without data or processes."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from odb_stream.cli.options import BatchSizeOption, LayoutOption, LookaheadOption, WindowOption, require_drawable
from odb_stream.cli.output import print_json, print_rows, tracked
from odb_stream.config import DEFAULT_BUDGET, Budget, Policy, Settings, require_int
from odb_stream.errors import ConfigError

EXAMPLE = "odb-stream simulate --lengths lengths.npy --layout packed --window 1024 --token-budget 16384"


def simulate(
    lengths: Annotated[Path, typer.Option(metavar="FILE.npy", help="Token counts: a one-dimensional integer array.")],
    policy: Annotated[
        Literal["all", "anchored", "paper-window", "fixed", "gmt", "bmt"],
        typer.Option(help="anchored is the loader's own policy; gmt and bmt are offline oracles; all compares them."),
    ] = "all",
    layout: LayoutOption = Settings.layout,
    world_size: Annotated[
        int | None, typer.Option(help="Ranks to deal the samples to; by default as many as --shares, or 1.")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(metavar="1,1,2", help="Contiguous parts in this proportion, one per rank; otherwise round-robin."),
    ] = None,
    window: WindowOption = Settings.window,
    lookahead: LookaheadOption = Settings.lookahead,
    token_budget: Annotated[
        int, typer.Option("--token-budget", "--budget", help="Most tokens in one rank's step.")
    ] = DEFAULT_BUDGET,
    batch_size: BatchSizeOption = 8,
    pad_to_multiple_of: Annotated[
        int, typer.Option(help="Widths are rounded up to a multiple of this.")
    ] = Settings.pad_to_multiple_of,
    rebalance: Annotated[
        bool,
        typer.Option(
            "--rebalance/--no-rebalance", help="anchored only: ranks with remaining data give groups to those without."
        ),
    ] = Settings.rebalance,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write a picture of the policies side by side.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list of them with --policy all.")
    ] = False,
) -> None:
    """Simulate batching policies on an array of lengths.

    Samples over the budget are dropped and counted. max_delay is measured for anchored only, and 0 for the others.
    """
    from odb_stream import storage
    from odb_stream.batching.cost import Footprint
    from odb_stream.batching.simulate.figures import deal
    from odb_stream.batching.simulate.figures import simulate as run_policy

    require_int("--token-budget", token_budget, minimum=1)
    require_drawable("--png", png)
    settings = Settings(
        budget=Budget(token_budget),
        layout=layout,
        window=window,
        lookahead=lookahead,
        pad_to_multiple_of=pad_to_multiple_of,
        rebalance=rebalance,
    )
    parts = _shares(shares)
    by_default = 1 if parts is None else len(parts)
    ranks = deal(load_lengths(lengths), by_default if world_size is None else world_size, parts)
    names: tuple[Policy, ...] = get_args(Policy) if policy == "all" else (policy,)
    rows, drawn = [], []
    for name in tracked("simulating", names):
        started = time.perf_counter()
        figures = run_policy(
            ranks,
            policy=name,
            footprint=Footprint.of(settings),
            window=window,
            lookahead=lookahead,
            batch_size=batch_size,
            rebalance=rebalance,
        )
        rows.append({**asdict(figures), "seconds": time.perf_counter() - started})
        drawn.append(figures)
    title = f"{lengths.name}: {sum(map(len, ranks))} samples, budget {token_budget}"
    if png is not None:
        from odb_stream.inspection import pictures

        words = f"{title}, {len(ranks)} ranks, window {window}"
        storage.write_atomic(str(png), pictures.png([pictures.policies(drawn)], title=words))
    if as_json:
        print_json(rows if policy == "all" else rows[0])
    else:
        _print_comparison(rows, title=title)


def _shares(text: str | None) -> list[float] | None:
    """Shares from a text such as ``"1,1,2"``; None without one."""
    if text is None:
        return None
    try:
        parts = [float(share) for share in text.split(",")]
    except ValueError:
        parts = []
    if not parts or not all(map(math.isfinite, parts)):
        raise ConfigError(f"--shares is {text!r}, but must be finite numbers, one per rank, such as 1,1,2")
    return parts


def load_lengths(path: Path) -> list[int]:
    """The lengths in an ``.npy`` file. Raises ConfigError unless it contains positive integers in one dimension."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)  # a pickle could run any code
    except OSError as error:
        raise ConfigError(f"--lengths {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(f"--lengths {path} is not an array of numbers: save one with numpy.save ({error})") from error
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"--lengths {path} contains several arrays: save one with numpy.save")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"--lengths {path} contains {array.dtype} of shape {array.shape}, but must contain integers in 1 dimension"
        )
    if not array.size:
        raise ConfigError(f"--lengths {path} is empty: it must contain one token count per sample")
    if array.min() < 1:
        place = int(array.argmin())
        raise ConfigError(f"--lengths {path}: entry {place} is {array[place]}, but a sample has at least 1 token")
    lengths: list[int] = array.tolist()
    return lengths


def _print_comparison(rows: list[dict[str, Any]], *, title: str) -> None:
    """Print the figures of several policies, one policy per row; what all have in common is in the title."""
    first = rows[0]
    names = [name for name in first if name not in ("policy", "layout", "world_size", "window")]
    shown = [
        (row["policy"], *(f"{row[name]:.4f}" if isinstance(row[name], float) else str(row[name]) for name in names))
        for row in rows
    ]
    title = f"{title}, {first['layout']}, {first['world_size']} ranks, window {first['window']}"
    print_rows(title, ("policy", *(name.replace("_", " ") for name in names)), shown)
