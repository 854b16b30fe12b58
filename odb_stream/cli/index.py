"""The command ``index``: writes an index beside each shard, with which reading can begin at any sample."""

from rich.table import Table

from odb_stream.cli.options import AsJson, Endpoint, ShardUrls, storage_options
from odb_stream.cli.output import print_json, print_table, progress

EXAMPLE = "odb-stream index 'shards/chat-{000000..000003}.tar'"


def index(
    urls: ShardUrls,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Index shards: SHARD.tar.idx.json beside each, in a folder or a bucket.

    With an index beside every shard, the number of samples is known and ranks share the samples equally. A damaged
    shard is an error and gets no index.
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
