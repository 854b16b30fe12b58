"""Where the bytes are: the only module that opens files, with one access for each scheme of an address."""

import contextlib
import errno
import glob
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from braceexpand import braceexpand

from odb_stream.errors import ConfigError, ShardError
from odb_stream.shardio.options import DEFAULT, Storage

INDEX_SUFFIX = ".idx.json"
"""What the address of a shard's sidecar index ends with; globs leave such files out."""

ACCEPTED = "local paths and file:// addresses"

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One address, brace list or glob, or several of them."""


class Access(Protocol):
    """What the package needs of a place where shards lie; a path is an address without its scheme."""

    def open(self, path: str, offset: int) -> BinaryIO:
        """A stream of the file's bytes from ``offset`` on."""

    def size(self, path: str) -> int:
        """Bytes in the file; FileNotFoundError where there is none, IsADirectoryError for a folder."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A stream to write to; the file appears, whole, when the block ends without an error."""

    def remove(self, path: str) -> None:
        """Delete the file; no error where there is none."""

    def match(self, pattern: str) -> list[str]:
        """The paths that fit a glob, in any order; a pattern without wildcards fits itself."""

    def identity(self, path: str) -> str:
        """The same text for two paths to the same file."""


class LocalFiles:
    """Access to files of this machine."""

    def open(self, path: str, offset: int) -> BinaryIO:
        """See :class:`Access`."""
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        file.seek(offset)
        return file

    def size(self, path: str) -> int:
        """See :class:`Access`."""
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return status.st_size

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """See :class:`Access`. Written under a hidden name in the same folder, then renamed."""
        folder, name = os.path.split(path)
        os.makedirs(folder or ".", exist_ok=True)
        unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
        try:
            with open(unfinished, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(unfinished)
            raise

    def remove(self, path: str) -> None:
        """See :class:`Access`."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def match(self, pattern: str) -> list[str]:
        """See :class:`Access`. A file whose very name is the pattern comes first: names may hold brackets."""
        if not glob.has_magic(pattern) or os.path.exists(pattern):
            return [pattern]
        return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]

    def identity(self, path: str) -> str:
        """See :class:`Access`. Links are followed."""
        return os.path.realpath(path)


_LOCAL = LocalFiles()
_ACCESS: dict[str, Access] = {"": _LOCAL, "file": _LOCAL}


def resolve(address: str, options: Storage = DEFAULT) -> tuple[Access, str]:
    """The access to an address and the path in it; the one place that knows schemes.

    Raises ConfigError for a scheme that cannot be read and for anything that would run a command.
    """
    text = address.strip()
    if text.lower().startswith("pipe:") or text.startswith("|") or text.endswith("|") or text == "-":
        raise ConfigError(
            f"{address!r} asks for a command or a pipe, which is refused (`pipe:` too): name a file; "
            f"accepted are {ACCEPTED}"
        )
    scheme, separator, path = address.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return _ACCESS[""], address
    if scheme.lower() not in _ACCESS:
        raise ConfigError(f"{log_name(address)}: {scheme}:// addresses cannot be read; accepted are {ACCEPTED}")
    return _ACCESS[scheme.lower()], path


def log_name(address: str) -> str:
    """The address fit for logs and messages: without user, password, query and fragment."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def patterns(urls: Urls) -> tuple[str, ...]:
    """Brace lists opened and schemes checked, in the order given; looks at no file.

    Raises ConfigError for an empty list, unbalanced braces, and what :func:`resolve` refuses.
    """
    given = (urls,) if isinstance(urls, str | os.PathLike) else tuple(urls)
    if not given:
        raise ConfigError("the list of shards is empty: give at least one address, brace list or glob")
    opened: list[str] = []
    for url in given:
        if not isinstance(url, str | os.PathLike) or not os.fspath(url):
            raise ConfigError(f"a shard address must be a non-empty string, not {url!r}")
        resolve(os.fspath(url))
        try:
            opened.extend(braceexpand(os.fspath(url)))
        except ValueError as error:
            raise ConfigError(f"{url!r}: the braces do not match; write for example shard-{{000..015}}.tar") from error
    for address in opened:
        resolve(address)
    return tuple(opened)


def expand(urls: Urls, options: Storage = DEFAULT) -> tuple[str, ...]:
    """The addresses of all shards that brace lists, globs and lists name, sorted with numbers in numeric order.

    Raises ShardError where nothing matches or a file is missing, ConfigError for the same shard twice and for what
    :func:`patterns` refuses.
    """
    found: list[str] = []
    for pattern in patterns(urls):
        access, path = resolve(pattern, options)
        prefix = pattern[: len(pattern) - len(path)]
        matches = [match for match in access.match(path) if match == path or not match.endswith(INDEX_SUFFIX)]
        if not matches:
            raise ShardError(f"{log_name(pattern)}: no file matches; check the folder and the pattern")
        found.extend(prefix + match for match in matches)
    by_identity: dict[str, str] = {}
    for address in sorted(found, key=_numeric_order):
        size(address, options)
        access, path = resolve(address, options)
        identity = access.identity(path)
        if identity in by_identity:
            raise ConfigError(
                f"the same shard is listed twice, as {log_name(by_identity[identity])} and {log_name(address)}: its "
                "samples would be read twice; list each shard once"
            )
        by_identity[identity] = address
    return tuple(by_identity.values())


def _numeric_order(address: str) -> tuple[list[str | int], str]:
    parts = re.split(r"([0-9]+)", address)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], address


@contextlib.contextmanager
def _readable(address: str, options: Storage) -> Iterator[tuple[Access, str]]:
    try:
        yield resolve(address, options)
    except FileNotFoundError as error:
        raise ShardError(f"{log_name(address)}: no such file; check the address") from error
    except IsADirectoryError as error:
        raise ShardError(f"{log_name(address)} is a folder; name its files, for example {address}/*.tar") from error
    except OSError as error:
        raise ShardError(f"{log_name(address)} cannot be read: {error.strerror or error}") from error


def open_stream(address: str, offset: int = 0, options: Storage = DEFAULT) -> BinaryIO:
    """A stream of the file's bytes from ``offset`` on; close it after use. Raises ShardError."""
    with _readable(address, options) as (access, path):
        return access.open(path, offset)


def read_range(address: str, start: int, length: int, options: Storage = DEFAULT) -> bytes:
    """``length`` bytes from ``start`` on, or fewer where the file ends before. Raises ShardError."""
    with _readable(address, options) as (access, path), access.open(path, start) as stream:
        return stream.read(length)


def size(address: str, options: Storage = DEFAULT) -> int:
    """Bytes in the file. Raises ShardError where it is missing."""
    with _readable(address, options) as (access, path):
        return access.size(path)


def exists(address: str, options: Storage = DEFAULT) -> bool:
    """Whether there is a file at the address."""
    access, path = resolve(address, options)
    try:
        access.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def find(folder: str, pattern: str, options: Storage = DEFAULT) -> list[str]:
    """The addresses of the files in a folder whose names fit a glob, sorted; empty where none does."""
    access, path = resolve(folder, options)
    prefix = folder[: len(folder) - len(path)]
    return sorted((prefix + match for match in access.match(f"{glob.escape(path)}/{pattern}")), key=_numeric_order)


@contextlib.contextmanager
def create(address: str, options: Storage = DEFAULT) -> Iterator[BinaryIO]:
    """A stream to write a new file to; it appears, whole, when the block ends without an error, else not at all.

    Raises ShardError where the file cannot be written.
    """
    access, path = resolve(address, options)
    try:
        with access.create(path) as stream:
            yield stream
    except OSError as error:
        raise ShardError(
            f"{log_name(address)} cannot be written: {error.strerror or error}; check the folder"
        ) from error


def write_atomic(address: str, data: bytes, options: Storage = DEFAULT) -> None:
    """Write a whole file at once: readers see the old one or the new one, never a part."""
    with create(address, options) as stream:
        stream.write(data)


def remove(address: str, options: Storage = DEFAULT) -> None:
    """Delete a file; no error where there is none."""
    access, path = resolve(address, options)
    access.remove(path)
