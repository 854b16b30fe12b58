"""Small tar shards, and who opens them."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from odb_stream import storage
from odb_stream.shards.index import write_index
from odb_stream.shards.reader import SampleStart, build_index, read_starts
from odb_stream.shards.tar.grouping import Item
from odb_stream.shards.writer import write_shards
from odb_stream.storage.options import DEFAULT, Storage

if TYPE_CHECKING:  # ranks and workers import this module, too
    import pytest

BLOCK = 512


def tar_bytes(files: Iterable[tuple[str, bytes]], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of these (name, data) pairs in this order, with names as given."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def write_tar_file(
    path: Path, files: Iterable[tuple[str, bytes]], tar_format: int = tarfile.GNU_FORMAT, *, indexed: bool = False
) -> str:
    """Write :func:`tar_bytes` to a file, and perhaps its index beside it; returns the file's address."""
    path.write_bytes(tar_bytes(files, tar_format))
    if indexed:
        write_index(str(path), build_index(str(path)))
    return str(path)


def overwrite_blocks(path: Path, *blocks: int) -> None:
    """Damage a shard: fill 512-byte blocks, counted from its start and around its end, with junk."""
    data = bytearray(path.read_bytes())
    for block in blocks:
        start = block * BLOCK % len(data)
        data[start : start + BLOCK] = b"\xff" * BLOCK
    path.write_bytes(data)


def read_one(address: str, offset: int, number: int, options: Storage = DEFAULT) -> Item:
    """The one sample that starts at a byte offset."""
    (sample,) = read_starts(address, [SampleStart(offset, number)], options)
    return sample


def watch_streams(patch: "pytest.MonkeyPatch") -> list[tuple[str, int]]:
    """The shards that are opened from now on, each with the byte offset."""
    opened: list[tuple[str, int]] = []
    open_stream = storage.open_stream

    def watch(address: str, offset: int = 0, options: Storage = DEFAULT) -> BinaryIO:
        if not address.endswith(storage.INDEX_SUFFIX):
            opened.append((Path(address).name, offset))
        return open_stream(address, offset, options)

    patch.setattr(storage, "open_stream", watch)
    return opened


def chat(text: str) -> bytes:
    """The json member of a chat with one user message."""
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


def chat_files(samples: int, prefix: str = "") -> list[tuple[str, bytes]]:
    """The files of numbered chats: one json each."""
    return [(f"{prefix}{number:05d}.json", chat(f"message {prefix}{number:05d}")) for number in range(samples)]


def write_counts(folder: Path, counts: Iterable[int], *, indexed: bool) -> str:
    """Shards of these many chats, with or without indexes; returns the glob that matches them."""
    for shard, count in enumerate(counts):
        write_tar_file(folder / f"part-{shard}.tar", chat_files(count, prefix=f"s{shard}/"), indexed=indexed)
    return f"{folder}/part-*.tar"


def write_texts(folder: Path, counts: Iterable[int], *, indexed: bool) -> list[str]:
    """Shards of these many texts of 5 to 60 letters; returns the addresses."""
    folder.mkdir(exist_ok=True)
    addresses = []
    for shard, count in enumerate(counts):
        texts = [f"{shard} {number} ".ljust(5 + number * 37 % 56, "x").encode() for number in range(count)]
        files = ((f"{shard}-{number:03d}.txt", text) for number, text in enumerate(texts))
        addresses.append(write_tar_file(folder / f"part-{shard}.tar", files, indexed=indexed))
    return addresses


def write_chats(folder: Path, samples: int, samples_per_shard: int) -> list[str]:
    """Chats written by the package's own writer."""
    raw = ((f"{number:08d}", {"json": chat(f"message {number}")}) for number in range(samples))
    return [shard.address for shard in write_shards(raw, str(folder), samples_per_shard=samples_per_shard)]
