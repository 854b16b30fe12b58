"""The command ``index``: writes an index beside each shard, with which reading can begin at any sample."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odb_stream.cli.options import AsJson, Endpoint, ShardUrls, storage_options
from odb_stream.cli.output import print_json, print_rows, tracked

if TYPE_CHECKING:
    from odb_stream.storage.options import Storage

EXAMPLE = "odb-stream index 'shards/chat-{000000..000003}.tar'"


def index(urls: ShardUrls, endpoint: Endpoint = None, as_json: AsJson = False) -> None:
    """Index shards: SHARD.tar.idx.json beside each, in a folder or a bucket.

    With an index beside every shard, the number of samples is known and ranks share the samples equally. A damaged
    shard is an error and gets no index.
    """
    from odb_stream import storage

    options = storage_options(endpoint)
    for pattern in storage.patterns(urls):  # before reading anything: a web server, for example, cannot be written to
        storage.require_writable(pattern, options)
    written = index_shards(storage.expand(urls, options), options)
    samples = sum(count for _, _, count in written)
    if as_json:
        shards = [{"address": address, "index": index_file, "samples": count} for address, index_file, count in written]
        print_json({"shards": shards, "samples": samples})
        return
    rows = [(index_file, str(count)) for _, index_file, count in written]
    print_rows(f"{samples} samples in {len(written)} shards", ("index", "samples"), rows)


def index_shards(addresses: Sequence[str], options: "Storage") -> list[tuple[str, str, int]]:
    """Write the index of each shard; returns each shard's address, the address of its index, and its samples."""
    from odb_stream.shards.index import write_index
    from odb_stream.shards.reader import build_index

    written = []
    for address in tracked("indexing", addresses):
        found = build_index(address, options)
        written.append((address, write_index(address, found, options), found.samples))
    return written
