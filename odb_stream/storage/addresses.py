"""Addresses as text: scheme and path, the name for logs, the sort order; nothing here looks at a file."""

import re

from odb_stream.errors import ConfigError

BUCKETS = {"s3": "bucket", "gs": "bucket", "az": "container"}
"""Schemes of object stores, and their word for the first part of an address."""
HTTP = frozenset({"http", "https"})
LOCAL = frozenset({"", "file"})

ACCEPTED = "local paths and file://, s3://, gs://, az://, http:// and https:// addresses"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_INSIDE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
# In an object's name a question mark is a wildcard or a letter; only `?name=` begins a query, which may be a signature.
_QUERY = re.compile(r"\?[^/?*]*=")


def split(address: str) -> tuple[str, str]:
    """The scheme in lower case ("" for a local path), and the rest of the address after ``://``.

    Raises ConfigError for a scheme that cannot be read and for anything that would run a command.
    """
    text = address.strip()
    if text.lower().startswith("pipe:") or text.startswith("|") or text.endswith("|") or text == "-":
        raise ConfigError(
            f"{log_name(address)!r} asks for a command or a pipe, which is refused (`pipe:` too): name a file; "
            f"accepted are {ACCEPTED}"
        )
    scheme, separator, rest = address.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "", address
    lowered = scheme.lower()
    if lowered not in BUCKETS and lowered not in HTTP and lowered not in LOCAL:
        raise ConfigError(f"{log_name(address)}: {scheme}:// addresses cannot be read; accepted are {ACCEPTED}")
    return lowered, rest


def log_name(address: str) -> str:
    """The address fit for logs and messages: without user, password, query and fragment."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    if not _SCHEME.fullmatch(scheme):
        return _INSIDE.sub(lambda found: log_name(found[0]), address)
    authority, slash, path = rest.partition("/")
    if scheme.lower() in BUCKETS:
        query = _QUERY.search(path)
        path = path[: query.start()] if query else path
    elif scheme.lower() not in LOCAL:
        authority, path = re.split("[?#]", authority)[0], re.split("[?#]", path)[0]
    return f"{scheme.lower()}://{authority.rpartition('@')[2]}{slash}{path}"


def beside(address: str, suffix: str) -> str:
    """The address with a suffix on the file's name; in an HTTP address that is before the query."""
    if split(address)[0] not in HTTP:
        return address + suffix
    end = re.search(r"[?#]|$", address)
    cut = end.start() if end else len(address)
    return address[:cut] + suffix + address[cut:]


def numeric_order(address: str) -> tuple[list[str | int], str]:
    """A sort key that puts numbers in numeric order: ``s-2`` before ``s-10``."""
    parts = re.split(r"([0-9]+)", address)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], address
