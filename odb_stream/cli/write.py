"""The command ``write``: turns JSON lines into tar shards, with an index beside each."""

from collections.abc import Iterator
from typing import Annotated

import typer

from odb_stream.cli.index import index_shards
from odb_stream.cli.options import AsJson, Endpoint, storage_options
from odb_stream.cli.output import Advance, print_json, print_rows, progress

EXAMPLE = "odb-stream write chats.jsonl shards/ --samples-per-shard 1000 --prefix chat"


def write(
    source: Annotated[str, typer.Argument(metavar="INPUT.jsonl", help="One JSON object per line, such as a chat.")],
    folder: Annotated[
        str, typer.Argument(metavar="OUTDIR", help="A folder, created if missing, or s3://BUCKET/FOLDER.")
    ],
    samples_per_shard: Annotated[int, typer.Option(help="Samples in each shard; the last may hold fewer.")],
    prefix: Annotated[str, typer.Option(help="Shards are named PREFIX-000000.tar and so on.")] = "shard",
    index: Annotated[bool, typer.Option("--index/--no-index", help="Write an index beside each shard.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing shards with this prefix.")] = False,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Write JSON lines as sample shards.

    Each line, unchanged, becomes the KEY.json of one sample; keys count the lines. Equal input gives equal bytes.
    """
    from odb_stream import storage
    from odb_stream.shards.writer import RawSample, jsonl_samples, write_shards

    options = storage_options(endpoint)

    def counted(advance: Advance) -> Iterator[RawSample]:
        for key, members in jsonl_samples(source, options):
            yield key, members
            advance(len(members["json"]) + 1)

    with progress(f"writing {folder}", total=storage.size(source, options)) as advance:
        written = write_shards(
            counted(advance),
            folder,
            samples_per_shard=samples_per_shard,
            prefix=prefix,
            overwrite=overwrite,
            options=options,
        )
    if index:
        index_shards([shard.address for shard in written], options)
    samples = sum(shard.samples for shard in written)
    if as_json:
        print_json({"shards": [shard._asdict() for shard in written], "samples": samples, "index": index})
        return
    title = f"{samples} samples in {len(written)} shards{', indexed' if index else ''}"
    print_rows(title, ("shard", "samples"), [(shard.address, str(shard.samples)) for shard in written])
