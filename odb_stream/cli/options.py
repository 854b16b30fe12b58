"""Options that several commands share, each written once with its help, and how a command ends early for bad ones."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odb_stream.config import Layout
from odb_stream.errors import ConfigError

if TYPE_CHECKING:
    from odb_stream.storage.options import Storage

ShardUrls = Annotated[list[str], typer.Argument(metavar="URLS...", help="Shards: addresses, brace ranges or globs.")]
Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A .py file or module with build(...) -> odb_stream.Pipeline.")
]
RecipeShards = Annotated[
    str | None,
    typer.Option("--shards", metavar="URLS", help="Brace range or glob, passed to the recipe as build(shards=URLS)."),
]
# Credentials come from the environment only: on a command line every process list would show them.
Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="URL", help="An S3-compatible server, such as http://localhost:9000."),
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Read public data without credentials.")]

LayoutOption = Annotated[Layout, typer.Option("--layout", help="Rows padded to the longest, or one packed row.")]
WindowOption = Annotated[int, typer.Option("--window", help="Samples held for grouping.")]
LookaheadOption = Annotated[int, typer.Option("--lookahead", help="Most groups planned in a round.")]
BatchSizeOption = Annotated[int, typer.Option("--batch-size", help="Samples in a batch of the policy fixed.")]
WorkersOption = Annotated[
    int, typer.Option("--workers", help="Processes that run the stages; 0 runs them in this process.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def storage_options(endpoint: str | None, *, anonymous: bool = False) -> "Storage":
    """The storage settings that the options give. Raises ConfigError for an invalid endpoint."""
    from odb_stream.storage.options import Storage

    return Storage(endpoint=endpoint, anonymous=anonymous)


def require_writable(option: str, path: Path | None) -> None:
    """Raise ConfigError, before a long run, if the file that ``option`` names cannot be written."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: give the path of a file")
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{option} {path}: the folder {folder} is not writable")


def require_drawable(option: str, path: Path | None) -> None:
    """Raise ConfigError, before a long run, if a file with pictures cannot be written, or matplotlib is missing."""
    require_writable(option, path)
    if path is None:
        return
    try:
        import matplotlib.figure  # noqa: F401 - only to see whether it is installed
    except ImportError as error:
        raise ConfigError(
            f'{option} needs matplotlib, which cannot be imported ({error}): pip install "odb-stream[viz]"'
        ) from error
