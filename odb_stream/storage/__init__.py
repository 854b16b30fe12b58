"""Where the bytes are: the package opens every data file through here, with one access for each kind of place."""

import contextlib
import functools
import glob
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from braceexpand import braceexpand

from odb_stream.errors import ConfigError, ShardError
from odb_stream.storage.access import Access, Denied, Missing
from odb_stream.storage.addresses import HTTP, LOCAL, numeric_order, split
from odb_stream.storage.addresses import log_name as log_name  # exported
from odb_stream.storage.http_files import HttpFiles
from odb_stream.storage.local import LocalFiles
from odb_stream.storage.options import DEFAULT, Storage
from odb_stream.storage.remote import Objects
from odb_stream.storage.stores import bucket_store, http_store

INDEX_SUFFIX = ".idx.json"
"""Suffix of a shard's sidecar index; globs leave such files out."""
MOST_REQUESTS = 32
"""Concurrent requests to stores."""

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One address, brace list or glob, or several of them."""

Work = TypeVar("Work")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_LOCAL = LocalFiles()
# One for each place and its settings: they remember that the store has answered.
_http = functools.lru_cache(maxsize=256)(HttpFiles)
_bucket = functools.lru_cache(maxsize=256)(Objects)


def resolve(address: str, options: Storage = DEFAULT) -> tuple[Access, str]:
    """The access to an address, and the path in it; connects to nothing.

    Raises ConfigError for a scheme that cannot be read, for anything that would run a command, for credentials in the
    address of an object store, and for a glob of HTTP addresses.
    """
    scheme, rest = split(address)
    if scheme in LOCAL:
        return _LOCAL, rest
    first = re.split("[/?#]" if scheme in HTTP else "/", rest, maxsplit=1)[0]
    path = rest[len(first) :].removeprefix("/")
    if scheme in HTTP:
        server = _http(scheme, first, options)
        if server.is_pattern(path):
            server.match(path)
        return server, path
    if not first:
        raise ConfigError(f"{log_name(address)}: the bucket is not named; write {scheme}://BUCKET/NAME")
    if "@" in first:
        raise ConfigError(
            f"{log_name(address)}: credentials do not belong in the address of a bucket; give them as Storage settings "
            "or in the environment"
        )
    return _bucket(scheme, first, options), path


def forget_clients() -> None:
    """Forget the clients of stores: new ones read the environment again."""
    _http.cache_clear()
    _bucket.cache_clear()
    bucket_store.cache_clear()
    http_store.cache_clear()


def patterns(urls: Urls) -> tuple[str, ...]:
    """The addresses with brace lists expanded and schemes checked, in the order given; looks at no file.

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
        opened.extend(_open_braces(os.fspath(url)))
    for address in opened:
        resolve(address)
    return tuple(opened)


def _open_braces(address: str) -> list[str]:
    # The parser's error contains the whole address, perhaps with a signature, so it stays out of the chain of causes.
    with contextlib.suppress(ValueError):
        return list(braceexpand(address))
    raise ConfigError(f"{log_name(address)!r}: the braces do not match; write for example shard-{{000..015}}.tar")


def expand(urls: Urls, options: Storage = DEFAULT) -> tuple[str, ...]:
    """The addresses of all shards that brace lists, globs and lists name, sorted with numbers in numeric order.

    Raises ShardError if nothing matches or a file is missing, ConfigError for the same shard twice and for what
    :func:`patterns` refuses.
    """
    named: list[str] = []
    found: list[str] = []
    for pattern in patterns(urls):
        with _readable(pattern, options) as (access, path):
            if not access.is_pattern(path):
                named.append(pattern)
                continue
            matches = [match for match in access.match(path) if not match.endswith(INDEX_SUFFIX)]
        if not matches:
            raise ShardError(f"{log_name(pattern)}: no file matches; check the folder and the pattern")
        found.extend(pattern[: len(pattern) - len(path)] + match for match in matches)
    named.sort(key=numeric_order)
    for_each(functools.partial(size, options=options), named)
    by_identity: dict[str, str] = {}
    # Two names of one file would train on its samples twice without a word.
    for address in sorted(named + found, key=numeric_order):
        access, path = resolve(address, options)
        identity = access.identity(path)
        if identity in by_identity:
            raise ConfigError(
                f"the same shard is listed twice, as {log_name(by_identity[identity])} and {log_name(address)}: its "
                "samples would be read twice; list each shard once"
            )
        by_identity[identity] = address
    return tuple(by_identity.values())


def for_each(request: Callable[[str], Result], addresses: Sequence[str]) -> list[Result]:
    """The results of a request for each address, in order; requests to stores run :func:`concurrently`.

    A local disk answers in less time than a thread takes to start, so local files are asked one after another.
    """
    slow = any(resolve(address)[0].concurrent for address in addresses)
    return concurrently(request, addresses, most=MOST_REQUESTS if slow else 1)


def concurrently(work: Callable[[Work], Result], items: Sequence[Work], *, most: int) -> list[Result]:
    """The results of the work for each item, in order, by up to ``most`` threads. Raises the first item's error."""
    threads = min(most, len(items))
    if threads < 2:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(threads, thread_name_prefix="odb_stream-requests")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _readable(address: str, options: Storage) -> Iterator[tuple[Access, str]]:
    try:
        yield resolve(address, options)
    except Missing as error:
        raise ShardError(f"{log_name(address)}: {error}; check the address") from error
    except FileNotFoundError as error:
        raise ShardError(f"{log_name(address)}: no such file; check the address") from error
    except IsADirectoryError as error:
        folder = log_name(address).rstrip("/")
        raise ShardError(f"{log_name(address)} is a folder; name its files, for example {folder}/*.tar") from error
    except OSError as error:
        raise ShardError(f"{log_name(address)} cannot be read: {error.strerror or error}") from error


def open_stream(address: str, offset: int = 0, options: Storage = DEFAULT) -> BinaryIO:
    """A stream of the file's bytes from ``offset`` on; close it after use.

    Raises ShardError; so do its reads when a store's object becomes unreadable, is cut or was replaced.
    """
    with _readable(address, options) as (access, path):
        return access.open(path, offset)


def read_if_there(address: str, options: Storage = DEFAULT, *, length: int | None = None) -> bytes | None:
    """A small file, or its first ``length`` bytes, in one request; None if it does not exist. Raises ShardError.

    Without permission to list, a store refuses a missing object like a forbidden one; that counts as missing, with a
    warning.
    """
    with _readable(address, options) as (access, path):
        try:
            return access.read(path, length)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Denied as denied:
            if not denied.may_be_missing:
                raise
            _warn_of_refusal(log_name(address).rpartition("/")[0], str(denied))
            return None


@functools.cache  # once for each folder
def _warn_of_refusal(folder: str, words: str) -> None:
    logger.warning(
        "%s: indexes there are taken as missing, because the store does not say whether there are any (%s); permission "
        "to list the bucket makes it say so",
        folder,
        words,
    )


def size(address: str, options: Storage = DEFAULT) -> int:
    """Bytes in the file. Raises ShardError if it is missing."""
    with _readable(address, options) as (access, path):
        return access.size(path)


def exists(address: str, options: Storage = DEFAULT) -> bool:
    """Whether there is a file at the address. Raises ShardError if that cannot be determined."""
    with _readable(address, options) as (access, path):
        return access.exists(path)


def find(folder: str, pattern: str, options: Storage = DEFAULT) -> list[str]:
    """The addresses of the files in a folder that match a glob, sorted; in the folder's name a ``*`` is literal."""
    with _readable(folder, options) as (access, path):
        prefix = folder[: len(folder) - len(path)] if path else f"{folder.rstrip('/')}/"
        matches = access.match(f"{glob.escape(path)}/{pattern}" if path else pattern)
        return sorted((prefix + match for match in matches), key=numeric_order)


def require_writable(address: str, options: Storage = DEFAULT) -> None:
    """Raise ConfigError for an HTTP address, where files can only be read."""
    access, path = resolve(address, options)
    access.require_writable(path)


@contextlib.contextmanager
def create(address: str, options: Storage = DEFAULT) -> Iterator[BinaryIO]:
    """A stream to write a new file to. The file appears, whole, when the block ends without an error, else never.

    Raises ShardError if the file cannot be written, ConfigError for an HTTP address.
    """
    access, path = resolve(address, options)
    try:
        with access.create(path) as stream:
            yield stream
    except OSError as error:
        hint = "; check the folder" if access is _LOCAL else ""
        raise ShardError(f"{log_name(address)} cannot be written: {error.strerror or error}{hint}") from error


def write_atomic(address: str, data: bytes, options: Storage = DEFAULT) -> None:
    """Write a whole file at once: readers see the old one or the new one, never a part."""
    with create(address, options) as stream:
        stream.write(data)


def remove(address: str, options: Storage = DEFAULT) -> None:
    """Delete a file, if it exists. Raises ShardError if it cannot be deleted."""
    access, path = resolve(address, options)
    try:
        access.remove(path)
    except OSError as error:
        raise ShardError(f"{log_name(address)} cannot be deleted: {error.strerror or error}") from error
