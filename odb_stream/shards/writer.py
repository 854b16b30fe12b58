"""Writing shards: samples into tar files, equal bytes for equal input; and JSON lines as samples."""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

from odb_stream import storage
from odb_stream.config import require_int
from odb_stream.errors import ConfigError, ShardError
from odb_stream.shards.index import index_address
from odb_stream.shards.tar.grouping import PICKLES, is_left_out, split_name
from odb_stream.storage.options import DEFAULT, Storage

_MODE = 0o644

RawSample = tuple[str, Mapping[str, bytes]]
"""A key, and the members by extension."""


class WrittenShard(NamedTuple):
    """One shard that was written: its address and the number of samples in it."""

    address: str
    samples: int


def write_shards(
    samples: Iterable[RawSample],
    outdir: str,
    *,
    samples_per_shard: int,
    prefix: str = "shard",
    overwrite: bool = False,
    options: Storage = DEFAULT,
) -> tuple[WrittenShard, ...]:
    """Write samples to ``OUTDIR/PREFIX-000000.tar`` and so on, ``samples_per_shard`` in each (the last may hold fewer).

    ``outdir`` is a local folder, or a bucket with or without a folder in it. Equal samples give equal bytes. A shard
    appears under its name only when it is whole; if writing fails, no shard of this call stays. ``overwrite`` replaces
    all shards of that prefix in the folder, with their indexes.

    Raises ConfigError if such shards exist and ``overwrite`` is off, if there is no sample, for a key or extension
    that could not be read back, and for an HTTP address; ShardError if the store cannot be written.
    """
    require_int("samples_per_shard", samples_per_shard, minimum=1)
    if not prefix or "/" in prefix:
        raise ConfigError(f"prefix is {prefix!r}, but must be a file name without a folder")
    storage.require_writable(outdir, options)
    folder = outdir.rstrip("/") or "/"
    existing = storage.find(folder, f"{prefix}-[0-9][0-9][0-9][0-9][0-9][0-9].tar", options)
    if existing and not overwrite:
        raise ConfigError(
            f"{storage.log_name(existing[0])} exists (and {len(existing) - 1} more shards of that prefix): write to "
            "another folder, give another prefix, or ask to overwrite"
        )
    written: list[WrittenShard] = []
    try:
        for number, part in enumerate(_parts(samples, samples_per_shard)):
            address = f"{folder}/{prefix}-{number:06d}.tar"
            # First: an index of an old shard must not be found beside the new one, even for a moment.
            storage.remove(index_address(address), options)
            with storage.create(address, options) as stream:
                count = write_tar(stream, part)
            written.append(WrittenShard(address, count))
    except BaseException:
        for shard in written:
            storage.remove(shard.address, options)
        raise
    if not written:
        raise ConfigError("there is no sample to write: the input is empty")
    for address in set(existing) - {shard.address for shard in written}:
        storage.remove(index_address(address), options)
        storage.remove(address, options)
    return tuple(written)


def _parts(samples: Iterable[RawSample], size: int) -> Iterator[Iterator[RawSample]]:
    """Consecutive parts of at most ``size`` samples, none empty; use up each before asking for the next."""
    rest = iter(samples)
    for first in rest:
        yield chain([first], islice(rest, size - 1))


def write_tar(stream: BinaryIO, samples: Iterable[RawSample]) -> int:
    """Write one shard of these samples to a stream, members sorted by extension; returns the number of samples."""
    keys: set[str] = set()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for key, members in samples:
            if key in keys:
                raise ConfigError(f"the key {key!r} appears twice in a shard: give each sample its own key")
            if not members:
                raise ConfigError(f"the sample of key {key!r} has no members: give at least json or txt")
            keys.add(key)
            for extension in sorted(members):
                _check_name(key, extension)
                # Owner, group and time are left at zero: the bytes depend on the samples alone.
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size, info.mode = len(members[extension]), _MODE
                tar.addfile(info, io.BytesIO(members[extension]))
    return len(keys)


def _check_name(key: str, extension: str) -> None:
    name = f"{key}.{extension}"
    lost = is_left_out(name) or name.startswith("./") or extension.startswith("__")
    if lost or split_name(name) != (key, extension):
        raise ConfigError(
            f"member {name!r} could not be read back as key {key!r} and extension {extension!r}: a key has no dot in "
            "its last part and no leading ./, an extension is lower-case"
        )
    if extension.rpartition(".")[2] in PICKLES:
        raise ConfigError(f"member {name!r} is a pickle, which may run code: store json, txt or images")


def read_jsonl(path: str, options: Storage = DEFAULT) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each line of a JSON-lines file; blank lines are skipped.

    Raises ShardError, with file and line number, for a line that is not a JSON object.
    """
    for number, _, content in _json_lines(path, options):
        yield number, content


def jsonl_samples(path: str, options: Storage = DEFAULT) -> Iterator[RawSample]:
    """The lines of a JSON-lines file as samples: keys 00000000, 00000001, ..., each line unchanged as the json."""
    for count, (_, line, _) in enumerate(_json_lines(path, options)):
        yield f"{count:08d}", {"json": line}


def _json_lines(path: str, options: Storage) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    with storage.open_stream(path, options=options) as stream:
        for number, raw in enumerate(stream, start=1):
            # Files from Windows editors begin with a byte order mark.
            line = raw.removeprefix(b"\xef\xbb\xbf").strip()
            if not line:
                continue
            place = f"{storage.log_name(path)}, line {number}"
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ShardError(f"{place}: not JSON ({error}); write one JSON object a line") from error
            if not isinstance(content, dict):
                raise ShardError(f"{place}: {type(content).__name__} instead of an object; write one object a line")
            yield number, line, content
