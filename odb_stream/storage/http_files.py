"""Files of an HTTP server, read by ranges; such a server cannot list its files and accepts none."""

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from odb_stream.errors import ConfigError
from odb_stream.storage.remote import Objects
from odb_stream.storage.stores import http_store

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class HttpFiles(Objects):
    """Access to the files of one server; the "bucket" is the authority of the address, perhaps with a user."""

    def require_writable(self, path: str) -> None:
        """Raises ConfigError."""
        raise ConfigError(
            f"{self._name(path)}: HTTP addresses can only be read; write to a local folder or a bucket, and serve the "
            "files from there"
        )

    def is_pattern(self, path: str) -> bool:
        """A question mark begins the query."""
        return re.search(r"[*[]", _parts(path)[0]) is not None

    def match(self, pattern: str) -> list[str]:
        """Raises ConfigError."""
        raise ConfigError(
            f"{self._name(pattern)}: an HTTP server has no list of its files, so globs find nothing there; name the "
            "files, for example by a brace list, shard-{000..015}.tar (a letter [ or * of a name is %5B or %2A)"
        )

    def _locate(self, path: str) -> "tuple[ObjectStore, str]":
        name, query = _parts(path)
        server = f"{self.scheme}://{self.bucket}"
        if _is_plain(name):
            return http_store(f"{server}{query}", self.options), unquote(name)
        # The client would encode such a name differently than the address does, and a server may tell them apart.
        return http_store(f"{server}/{name}{query}", self.options), ""

    def _require_file(self, path: str) -> None:
        """Any address may be that of a file."""

    def _words_of_missing(self) -> str:
        return "the server has no such file"


def _parts(path: str) -> tuple[str, str]:
    """The name, and the query with its question mark; a fragment is dropped."""
    name, mark, query = path.partition("#")[0].partition("?")
    return name, mark + query


def _is_plain(name: str) -> bool:
    if "%2f" in name.lower() or any(part in ("", ".", "..") for part in unquote(name).split("/")):
        return False
    return "\ufffd" not in unquote(name)
