"""What the package needs from a place where shards lie, and the errors by which such a place refuses."""

from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol


class Missing(FileNotFoundError):
    """The object or the bucket does not exist; the text says which."""


class Denied(PermissionError):
    """The store refuses these credentials; the text says what to check.

    ``may_be_missing`` is set if the store gives the same answer for an object that does not exist.
    """

    def __init__(self, text: str, *, may_be_missing: bool = False) -> None:
        super().__init__(text)
        self.may_be_missing = may_be_missing


class StoreError(OSError):
    """The store could not be reached, or failed; the text says how."""


class Access(Protocol):
    """One place of files. A path is an address without its scheme, and for an object store without its bucket.

    Requests raise OSError; the text of a store's error holds no secret.
    """

    @property
    def concurrent(self) -> bool:
        """Whether requests take so long that many should run at once."""

    def open(self, path: str, offset: int) -> BinaryIO:
        """A stream of the file's bytes from ``offset`` on."""

    def read(self, path: str, length: int | None) -> bytes:
        """The first ``length`` bytes, or all with None; fewer if the file is shorter."""

    def size(self, path: str) -> int:
        """Bytes in the file. Raises FileNotFoundError, or IsADirectoryError for a folder."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""

    def require_writable(self, path: str) -> None:
        """Raise ConfigError if files can only be read."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A stream to write to; the file appears, whole, when the block ends without an error."""

    def remove(self, path: str) -> None:
        """Delete the file, if it exists."""

    def is_pattern(self, path: str) -> bool:
        """Whether the path is a glob and not the name of a file."""

    def match(self, pattern: str) -> list[str]:
        """The paths of the files that match a glob, in any order."""

    def identity(self, path: str) -> str:
        """The same text for two paths to the same file."""
