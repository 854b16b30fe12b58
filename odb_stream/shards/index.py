"""The sidecar index of a shard, ``SHARD.tar.idx.json``: where each sample starts, so that reading can begin anywhere.

It is one JSON object. Its first line holds the version, the shard's size in bytes and the number of samples, so that
opening thousands of shards reads no more than one small range of each index. The keys, byte offsets and checksums
(CRC-32 over names and data) of the samples follow. :func:`odb_stream.shards.reader.build_index` makes one.
"""

import functools
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from odb_stream import storage
from odb_stream.errors import ShardError, StateError
from odb_stream.shards.tar.grouping import TarSample
from odb_stream.storage import addresses
from odb_stream.storage.options import DEFAULT, Storage

VERSION = 1
_FIRST_LINE_BYTES = 256  # its three numbers take less than a hundred


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The key, byte offset and checksum of each sample of a shard of ``shard_bytes`` bytes.

    ``present_bytes`` is the size of the shard when the index was read, smaller if the shard was cut; None for an index
    that was not read from a file.
    """

    shard_bytes: int
    keys: tuple[str, ...]
    offsets: tuple[int, ...]
    checksums: tuple[int, ...]
    present_bytes: int | None = field(default=None, compare=False)

    @property
    def samples(self) -> int:
        """How many samples the shard holds."""
        return len(self.keys)

    def verify(self, address: str, sample: TarSample) -> None:
        """Raise ShardError unless the index has this sample at this number and byte offset."""
        number = sample.index
        if number >= self.samples:
            raise stale(address, f"the shard holds more than the {self.samples} samples of its index")
        if (sample.key, sample.offset) != (self.keys[number], self.offsets[number]):
            raise stale(
                address,
                f"sample {number} is key {sample.key!r} at byte offset {sample.offset}, the index has key "
                f"{self.keys[number]!r} at {self.offsets[number]}",
            )


def index_address(address: str) -> str:
    """The address of a shard's index: beside the shard; in a signed HTTP address the query stays at the end."""
    return addresses.beside(address, storage.INDEX_SUFFIX)


def stale(address: str, what: str) -> ShardError:
    """The error for an index that does not fit its shard."""
    name = storage.log_name(index_address(address))
    return ShardError(f"{name}: {what}; run `odb-stream index` again on {storage.log_name(address)}")


def checksum(sample: TarSample) -> int:
    """CRC-32 over the sample's extensions and data, in file order."""
    crc = 0
    for extension, data in sample.members.items():
        crc = zlib.crc32(data, zlib.crc32(extension.encode("utf-8", "surrogateescape"), crc))
    return crc


def index_of(samples: Iterable[TarSample], shard_bytes: int) -> ShardIndex:
    """The index of a shard of that size with these samples."""
    entries = [(sample.key, sample.offset, checksum(sample)) for sample in samples]
    keys, offsets, checksums = zip(*entries, strict=True) if entries else ((), (), ())
    return ShardIndex(shard_bytes, keys, offsets, checksums)


def write_index(address: str, index: ShardIndex, options: Storage = DEFAULT) -> str:
    """Write a shard's index beside it; returns the index's address."""
    first_line = json.dumps({"version": VERSION, "shard_bytes": index.shard_bytes, "samples": index.samples})
    columns = {"keys": index.keys, "offsets": index.offsets, "checksums": index.checksums}
    lines = [first_line[:-1], *(f'"{name}": {json.dumps(values)}' for name, values in columns.items())]
    storage.write_atomic(index_address(address), (",\n".join(lines) + "}\n").encode(), options)
    return index_address(address)


def read_index(address: str, options: Storage = DEFAULT, *, may_be_cut: bool = False) -> ShardIndex | None:
    """A shard's index, or None if it has none. Raises ShardError for one that is unreadable or does not fit the shard.

    A shard that is shorter than its index says does not fit either, unless it ``may_be_cut``: the index then says what
    is missing.
    """
    text = storage.read_if_there(index_address(address), options)
    if text is None:
        return None
    content = _parse(text)
    samples, present = _samples_and_bytes(address, content, options, may_be_cut=may_be_cut)
    columns = [content.get(name) for name in ("keys", "offsets", "checksums")]
    if not all(_is_column(column, samples, kind) for column, kind in zip(columns, (str, int, int), strict=True)):
        raise stale(address, "the index is damaged: it does not hold a key, an offset and a checksum for each sample")
    keys, offsets, checksums = (tuple(column or ()) for column in columns)
    return ShardIndex(content["shard_bytes"], keys, offsets, checksums, present)


def read_count(address: str, options: Storage = DEFAULT, *, may_be_cut: bool = False) -> int | None:
    """How many samples a shard's index counts, from its first line; None without an index.

    Raises ShardError as :func:`read_index` does.
    """
    start = storage.read_if_there(index_address(address), options, length=_FIRST_LINE_BYTES)
    if start is None:
        return None
    content = _parse(start.partition(b"\n")[0].rstrip(b", \r") + b"}")
    if content:
        return _samples_and_bytes(address, content, options, may_be_cut=may_be_cut)[0]
    index = read_index(address, options, may_be_cut=may_be_cut)
    return None if index is None else index.samples


def read_counts(shards: Sequence[str], options: Storage = DEFAULT, *, may_be_cut: bool = False) -> list[int | None]:
    """The number of samples of each shard, None without an index, with concurrent requests to a store."""
    return storage.for_each(functools.partial(read_count, options=options, may_be_cut=may_be_cut), shards)


class Indexes:
    """The indexes of the shards that had one when they were opened.

    Only the last one read is kept: an index may be large, and shards are read one after another.
    """

    def __init__(self, indexed: Iterable[str], options: Storage, *, may_be_cut: bool) -> None:
        self._indexed = frozenset(indexed)
        self._options = options
        self._may_be_cut = may_be_cut
        self._last: tuple[str, ShardIndex] | None = None

    def of(self, address: str) -> ShardIndex | None:
        """A shard's index, or None. Raises ShardError where it is gone or does not fit the shard."""
        if address not in self._indexed:
            return None
        last = self._last
        if last is None or last[0] != address:
            index = read_index(address, self._options, may_be_cut=self._may_be_cut)
            if index is None:
                raise stale(address, "the index went away while the shards were open")
            last = self._last = (address, index)
        return last[1]

    def require(self, addresses: Iterable[str]) -> None:
        """Raise StateError unless every shard has an index: without one the remaining samples cannot be determined."""
        for address in addresses:
            if address not in self._indexed:
                raise StateError(
                    f"{storage.log_name(address)} has no index, so the remaining samples cannot be determined and "
                    "only the same number of ranks can resume: resume this run with as many ranks as before, and run "
                    "`odb-stream index` on all shards before the next one begins"
                )


def _parse(text: bytes) -> dict[str, Any]:
    """The JSON object in these bytes; an empty one if they hold none."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _samples_and_bytes(address: str, content: dict[str, Any], options: Storage, *, may_be_cut: bool) -> tuple[int, int]:
    """The number of samples that an index of this version states, and the bytes that the shard has now."""
    if not content:
        raise stale(address, "the index is not a JSON object")
    if content.get("version") != VERSION:
        raise stale(address, f"the index has version {content.get('version')!r}, this package reads {VERSION}")
    present = storage.size(address, options)
    was = content.get("shard_bytes")
    if was != present and not (may_be_cut and isinstance(was, int) and present < was):
        raise stale(address, f"the index is stale: it was made for {was!r} bytes, the shard has {present}")
    samples = content.get("samples")
    if type(samples) is not int or samples < 0:
        raise stale(address, f"the index counts {samples!r} samples")
    return samples, present


def _is_column(column: object, length: int, kind: type) -> bool:
    return isinstance(column, list) and len(column) == length and all(type(value) is kind for value in column)
