"""The options by which commands reach object stores and HTTP servers; credentials come from the environment alone."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from odb_stream.storage.options import Storage

Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="URL", help="An S3-compatible server, such as http://localhost:9000."),
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Read public data without credentials.")]


def storage_options(endpoint: str | None, *, anonymous: bool = False) -> "Storage":
    """The storage settings that the options give. Raises ConfigError for an endpoint that is none."""
    from odb_stream.storage.options import Storage

    return Storage(endpoint=endpoint, anonymous=anonymous)
