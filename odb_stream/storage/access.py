"""What the package needs of a place where shards lie, and how such a place says that something is not to be had."""

from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol


class Missing(FileNotFoundError):
    """There is no such object, or no such bucket; the text says which."""


class Denied(PermissionError):
    """The store refuses these credentials; the text says what to look at.

    ``may_be_missing`` is set where the store would say the same of an object that is not there.
    """

    def __init__(self, text: str, *, may_be_missing: bool = False) -> None:
        super().__init__(text)
        self.may_be_missing = may_be_missing


class StoreError(OSError):
    """The store could not be reached or failed; the text says how."""


class Access(Protocol):
    """One place of files; a path is an address without its scheme, for an object store without its bucket too.

    Requests raise OSError; that of a store holds no secret in its text.
    """

    @property
    def concurrent(self) -> bool:
        """Whether requests take so long that many should be on their way at once."""

    def open(self, path: str, offset: int) -> BinaryIO:
        """A stream of the file's bytes from ``offset`` on."""

    def read(self, path: str, length: int | None) -> bytes:
        """The first ``length`` bytes, all with None; fewer where the file ends before."""

    def size(self, path: str) -> int:
        """Bytes in the file; FileNotFoundError where there is none, IsADirectoryError for a folder."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def require_writable(self, path: str) -> None:
        """Raise ConfigError where files are only read."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A stream to write to; the file appears, whole, when the block ends without an error."""

    def remove(self, path: str) -> None:
        """Delete the file; no error where there is none."""

    def is_pattern(self, path: str) -> bool:
        """Whether the path is a glob and not the name of a file."""

    def match(self, pattern: str) -> list[str]:
        """The paths of the files that fit a glob, in any order."""

    def identity(self, path: str) -> str:
        """The same text for two paths to the same file."""
