"""Samples out of a tar shard: webdataset's grouping by key, with byte offsets, and an error where data would be lost.

A sample is a run of neighbouring files that share a key: the path up to the first dot of the file name. The rest of the
name is the extension. ``a/b.0.jpg`` has the key ``a/b`` and the extension ``0.jpg``.
"""

import functools
import importlib
import logging
import re
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from odb_stream.errors import ShardError
from odb_stream.shardio import storage
from odb_stream.shardio.options import DEFAULT, Storage

BLOCK = tarfile.BLOCKSIZE
PICKLES = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})
"""Extensions of formats that run code when they are loaded: refused."""
# A hidden file is left out, unless its name says that it is a sample's member whose key was forgotten.
_PAYLOADS = frozenset({"json", "txt", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"})
_REPAIR = "copy or write the shard again"
_SCAN_BYTES = 1 << 20

# What tarfile raises on damaged input, besides TarError: its parsers of numbers and extended headers fail as they may.
_DAMAGE = (tarfile.TarError, OSError, ValueError, IndexError, OverflowError, RecursionError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TarSample:
    """One sample of a shard: its members by lower-cased extension, its number, and the bytes it spans.

    ``offset`` is the byte of the first tar header (an extended header counts), ``end`` the byte after the last
    member's padding: reading can go on from there.
    """

    key: str
    members: dict[str, bytes]
    index: int
    offset: int
    end: int


class _File(NamedTuple):
    """One regular file of a shard, whose data are read on demand."""

    name: str
    offset: int
    end: int
    read: Callable[[], bytes]


class _Member(NamedTuple):
    """One member of a sample."""

    offset: int
    end: int
    data: bytes


@functools.cache
def _webdataset() -> ModuleType:
    # Loaded on first use: webdataset imports torch, which a worker process that only names this package must not load.
    return importlib.import_module("webdataset.tariterators")


def split_name(name: str) -> tuple[str, str] | None:
    """Key and lower-cased extension of a member's name by webdataset's rule; None where there are not both."""
    key, extension = _webdataset().base_plus_ext(name)
    # The rule finds the key "folder/" in "folder/.json": that is a folder, not a key.
    return (key, extension.lower()) if key and extension and not key.endswith("/") else None


def read_samples(
    address: str, *, offset: int = 0, index: int = 0, options: Storage = DEFAULT
) -> Generator[TarSample, None, None]:
    """Read a shard's samples in file order, from the one numbered ``index`` at byte ``offset`` to the end.

    Raises ShardError, with address, member and byte offset, for everything by which samples or members would be lost:
    no tar, a cut, a corrupt header, missing end blocks, data after the end, a key that comes back after another one
    (among those read), a member twice, without key or extension, or in a pickle format. Folders, links and hidden
    files are left out.
    """
    with storage.open_stream(address, offset, options) as stream:
        named = _named_members(address, _files(address, stream, offset, options))
        for number, group in enumerate(_webdataset().group_by_keys(named), start=index):
            del group["__url__"]
            key = group.pop("__key__")
            members = {extension: member.data for extension, member in group.items()}
            parts = list(group.values())
            yield TarSample(key, members, number, parts[0].offset, parts[-1].end)


def read_sample(address: str, *, offset: int, index: int, options: Storage = DEFAULT) -> TarSample:
    """Read again the one sample that starts at byte ``offset``. Raises ShardError where none does."""
    with closing(read_samples(address, offset=offset, index=index, options=options)) as samples:
        sample = next(samples, None)
    if sample is None or sample.offset != offset:
        raise _error(address, offset, f"no sample starts here (sample {index})", "the shard was changed since")
    return sample


def _named_members(address: str, files: Iterator[_File]) -> Iterator[dict[str, Any]]:
    """The members in the form that webdataset groups; raise where it would merge, overwrite or leave out.

    An empty dict, webdataset's mark of an end, goes before each new key: a sample is whole, and handed on, before the
    data of the next are read.
    """
    url = storage.log_name(address)
    current: str | None = None
    extensions: set[str] = set()
    seen: set[str] = set()
    for file in files:
        if is_left_out(file.name):
            continue
        parts = split_name(file.name)
        if parts is None:
            raise _error(address, file.offset, f"member {file.name!r} has no key or no extension", "name it KEY.EXT")
        key, extension = parts
        place = f"member {file.name!r} of key {key!r}"
        if extension.rpartition(".")[2] in PICKLES:
            raise _error(address, file.offset, f"{place} is a pickle, which may run code", "store json, txt or images")
        if extension.startswith("__"):
            raise _error(address, file.offset, f"{place} has a reserved extension", "rename it")
        if key != current:
            if key in seen:
                way_out = "write the files of a key next to each other (tar --sort=name)"
                raise _error(address, file.offset, f"{place}: the key comes back after other keys", way_out)
            seen.add(key)
            current, extensions = key, set()
            yield {}
        if extension in extensions:
            raise _error(address, file.offset, f"{place} is there twice", "give each member of a key its own extension")
        extensions.add(extension)
        yield {"fname": file.name, "data": _Member(file.offset, file.end, file.read()), "__url__": url}


def is_left_out(name: str) -> bool:
    """Whether a file is no member of a sample by its name: ``__meta__`` files and hidden files, as in webdataset."""
    if re.match(r"__[^/]*__($|/)", name):
        return True
    base = name.rpartition("/")[2]
    if not base.startswith("."):
        return False
    return base.startswith("._") or base.rpartition(".")[2].lower() not in _PAYLOADS


def _files(address: str, stream: BinaryIO, base: int, options: Storage) -> Iterator[_File]:
    """The regular files of the tar stream that starts at byte ``base`` of the shard; checks that the tar is whole."""
    try:
        tar = tarfile.open(fileobj=stream, mode="r|", encoding="utf-8")  # noqa: SIM115 - see `with tar` below
    except _DAMAGE as error:
        raise _unreadable_start(address, base, error, options) from error
    with tar:
        stop = base
        while (info := _next_header(address, tar, stop)) is not None:
            # The archive keeps every header it has read; in a stream nobody needs them again.
            tar.members.clear()  # type: ignore[attr-defined]
            stop = base + tar.offset
            name = info.name.removeprefix("./")
            if info.isreg():
                offset = base + info.offset
                yield _File(name, offset, stop, functools.partial(_read_data, address, tar, info, offset))
            elif info.issym() or info.islnk():
                logger.warning(
                    "%s, byte offset %d: member %r is a link and is left out; write the file itself into the shard",
                    storage.log_name(address),
                    base + info.offset,
                    name,
                )
    _check_end(address, stop, options)


def _next_header(address: str, tar: tarfile.TarFile, at: int) -> tarfile.TarInfo | None:
    try:
        return tar.next()
    except _DAMAGE as error:
        raise _error(address, at, f"the tar is cut or damaged ({error})", _REPAIR) from error


def _read_data(address: str, tar: tarfile.TarFile, info: tarfile.TarInfo, at: int) -> bytes:
    try:
        file = tar.extractfile(info)
        return b"" if file is None else file.read()
    except _DAMAGE as error:
        raise _error(address, at, f"the data of member {info.name!r} is cut or damaged ({error})", _REPAIR) from error


def _unreadable_start(address: str, base: int, error: Exception, options: Storage) -> ShardError:
    if base:
        return _error(address, base, f"no tar header here ({error})", f"{_REPAIR}, or its index if it was changed")
    if storage.size(address, options) == 0:
        return _error(address, 0, "the file is empty", _REPAIR)
    if storage.read_range(address, 0, 2, options) in (b"\x1f\x8b", b"BZ", b"\xfd7"):
        return _error(address, 0, "the file is compressed", "store plain tar files, which can be entered anywhere")
    return _error(address, 0, f"not a tar file ({error})", "give tar files in the WebDataset layout")


def _check_end(address: str, stop: int, options: Storage) -> None:
    """Raise unless the tar ends properly at byte ``stop``: two zero blocks and nothing but zeros after them.

    tarfile ends a stream in silence at the first block that is no header, whatever that block is.
    """
    blocks = storage.read_range(address, stop, 2 * BLOCK, options)
    if blocks.strip(b"\0"):
        if len(blocks) < BLOCK:
            raise _error(address, stop, "the tar is cut in a header", _REPAIR)
        if blocks[:BLOCK].strip(b"\0"):
            raise _error(address, stop, "a tar header is corrupt; the samples after it cannot be reached", _REPAIR)
    elif len(blocks) < 2 * BLOCK:
        way_out = f"it was cut, or its writer did not finish: {_REPAIR}"
        raise _error(address, stop, "the tar lacks its two end blocks", way_out)
    while blocks:
        if blocks.strip(b"\0"):
            way_out = "write one tar of the parts (tars cannot be joined by cat)"
            raise _error(address, stop, "data follows the first end block of the tar", way_out)
        stop += len(blocks)
        blocks = storage.read_range(address, stop, _SCAN_BYTES, options)


def _error(address: str, offset: int, what: str, way_out: str) -> ShardError:
    return ShardError(f"{storage.log_name(address)}, byte offset {offset}: {what}; {way_out}")
