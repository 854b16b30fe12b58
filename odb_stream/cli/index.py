"""The command ``index``: writes beside each shard where its samples start, so that reading can begin anywhere."""

from typing import Annotated

import typer
from rich.table import Table

from odb_stream.cli.output import print_json, print_table, progress
from odb_stream.cli.stores import Endpoint, storage_options

EXAMPLE = "odb-stream index 'shards/chat-{000000..000003}.tar'"


def index(
    urls: Annotated[list[str], typer.Argument(metavar="URLS...", help="Shards: addresses, brace ranges or globs.")],
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Index shards: SHARD.tar.idx.json beside each, in a folder or a bucket.

    With an index beside every shard the number of samples is known and ranks share the samples equally. A damaged
    shard is an error, and gets no index.
    """
    from odb_stream import storage
    from odb_stream.shards.index import write_index
    from odb_stream.shards.reader import build_index

    options = storage_options(endpoint)
    for pattern in storage.patterns(urls):
        storage.require_writable(pattern, options)
    addresses = storage.expand(urls, options)
    written = []
    samples = 0
    with progress("indexing", total=len(addresses)) as advance:
        for address in addresses:
            found = build_index(address, options)
            index_file = write_index(address, found, options)
            written.append({"address": address, "index": index_file, "samples": found.samples})
            samples += found.samples
            advance(1)
    if as_json:
        print_json({"shards": written, "samples": samples})
        return
    table = Table(title=f"{samples} samples in {len(written)} shards")
    table.add_column("index", overflow="fold")
    table.add_column("samples", justify="right")
    for entry in written:
        table.add_row(str(entry["index"]), str(entry["samples"]))
    print_table(table)
