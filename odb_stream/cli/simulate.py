"""The command ``simulate``: what a policy would give on an array of sample lengths, without data or processes."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from rich.table import Table

from odb_stream.cli import pictures
from odb_stream.cli.files import require_writable
from odb_stream.cli.output import print_json, print_table, progress
from odb_stream.cli.pictures import require_matplotlib
from odb_stream.config import Budget, Layout, Policy, Settings, require_int
from odb_stream.errors import ConfigError

EXAMPLE = "odb-stream simulate --lengths lengths.npy --layout packed --window 1024 --token-budget 16384"


def simulate(
    lengths: Annotated[Path, typer.Option(metavar="FILE.npy", help="Token counts: a one-dimensional integer array.")],
    policy: Annotated[
        Literal["all", "anchored", "paper-window", "fixed", "gmt", "bmt"],
        typer.Option(help="anchored is what the loader does; gmt and bmt are offline oracles; all compares them."),
    ] = "all",
    layout: Annotated[Layout, typer.Option(help="Rows padded to the longest, or one packed row.")] = "padded",
    world_size: Annotated[
        int | None, typer.Option(help="Ranks to deal to; by default as many as --shares, or 1.")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(metavar="1,1,2", help="Contiguous parts in this proportion, one a rank; else round-robin."),
    ] = None,
    window: Annotated[int, typer.Option(help="Samples held for grouping.")] = 1024,
    lookahead: Annotated[int, typer.Option(help="Groups planned in a round, at most.")] = 128,
    token_budget: Annotated[
        int, typer.Option("--token-budget", "--budget", help="Tokens of one rank's step, at most.")
    ] = 16_384,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of the policy fixed.")] = 8,
    pad_to_multiple_of: Annotated[int, typer.Option(help="Widths are rounded up to it.")] = 1,
    rebalance: Annotated[
        bool,
        typer.Option(
            "--rebalance/--no-rebalance", help="anchored only: ranks with data left give groups to those without."
        ),
    ] = True,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write a picture of the policies side by side.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list of them with --policy all.")
    ] = False,
) -> None:
    """Simulate batching policies on an array of lengths.

    Samples over the budget are dropped and counted. max_delay is known for anchored only, and 0 for the others.
    """
    from odb_stream import storage
    from odb_stream.batching.simulate.figures import deal

    require_int("--token-budget", token_budget, minimum=1)
    if png is not None:
        require_writable("--png", png)
        require_matplotlib("--png")
    settings = Settings(
        budget=Budget(token_budget),
        layout=layout,
        window=window,
        lookahead=lookahead,
        pad_to_multiple_of=pad_to_multiple_of,
        rebalance=rebalance,
    )
    parts = parse_shares(shares)
    ranks = deal(load_lengths(lengths), _world_size(world_size, parts), parts)
    names = get_args(Policy) if policy == "all" else (policy,)
    rows = []
    with progress("simulating", total=len(names)) as advance:
        for name in names:
            rows.append(measured(name, ranks, settings, batch_size))
            advance(1)
    title = f"{lengths.name}: {sum(map(len, ranks))} samples, budget {token_budget}"
    if png is not None:
        words = f"{title}, {len(ranks)} ranks, window {window}"
        storage.write_atomic(str(png), pictures.png([pictures.policies(rows)], title=words))
    if as_json:
        print_json(rows if policy == "all" else rows[0])
    else:
        print_table(comparison(rows, title=title))


def _world_size(given: int | None, shares: list[float] | None) -> int:
    if given is not None:
        return given
    return len(shares) if shares is not None else 1


def parse_shares(text: str | None) -> list[float] | None:
    """Shares from ``"1,1,2"``; None without."""
    if text is None:
        return None
    try:
        parts = [float(share) for share in text.split(",")]
    except ValueError:
        parts = []
    if not parts or not all(map(math.isfinite, parts)):
        raise ConfigError(f"--shares is {text!r}, but must be finite numbers, one a rank, such as 1,1,2")
    return parts


def load_lengths(path: Path) -> list[int]:
    """The lengths in an ``.npy`` file. Raises ConfigError unless it holds positive integers in one dimension."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"--lengths {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(f"--lengths {path} is no array of numbers: save one with numpy.save ({error})") from error
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"--lengths {path} holds several arrays: save one with numpy.save")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"--lengths {path} holds {array.dtype} of shape {array.shape}, but must hold integers in one dimension"
        )
    if not array.size:
        raise ConfigError(f"--lengths {path} is empty: it must hold one token count a sample")
    if array.min() < 1:
        place = int(array.argmin())
        raise ConfigError(f"--lengths {path}: entry {place} is {array[place]}, but a sample has at least 1 token")
    lengths: list[int] = array.tolist()
    return lengths


def measured(policy: Policy, ranks: list[list[int]], settings: Settings, batch_size: int) -> dict[str, Any]:
    """The figures of one policy, and the seconds that it took."""
    from odb_stream.batching.cost import Footprint
    from odb_stream.batching.simulate.figures import simulate as run_policy

    footprint = Footprint.of(settings)
    started = time.perf_counter()
    figures = run_policy(
        ranks,
        policy=policy,
        footprint=footprint,
        window=settings.window,
        lookahead=settings.lookahead,
        batch_size=batch_size,
        rebalance=settings.rebalance,
    )
    return {**asdict(figures), "seconds": time.perf_counter() - started}


def comparison(rows: list[dict[str, Any]], *, title: str) -> Table:
    """The figures of several policies side by side, one policy a row."""
    first = rows[0]
    table = Table(title=f"{title}, {first['layout']}, {first['world_size']} ranks, window {first['window']}")
    table.add_column("policy")
    hidden = ("policy", "layout", "world_size", "window")
    names = [name for name in first if name not in hidden]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        cells = [f"{row[name]:.4f}" if isinstance(row[name], float) else str(row[name]) for name in names]
        table.add_row(row["policy"], *cells)
    return table
