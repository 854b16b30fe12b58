"""Files of this machine."""

import contextlib
import errno
import glob
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO


class LocalFiles:
    """Access to files of this machine; :class:`odb_stream.storage.access.Access` describes the methods."""

    concurrent = False

    def open(self, path: str, offset: int) -> BinaryIO:
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        file.seek(offset)
        return file

    def read(self, path: str, length: int | None) -> bytes:
        with self.open(path, 0) as file:
            return file.read(-1 if length is None else length)

    def size(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return status.st_size

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def require_writable(self, path: str) -> None:
        """The system refuses when a file is created."""

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Written under a hidden name in the same folder, since a rename is atomic only there."""
        folder, name = os.path.split(path)
        os.makedirs(folder or ".", exist_ok=True)
        unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
        try:
            with open(unfinished, "xb") as file:
                yield file
                # Without it a power cut after the rename could leave an empty file under the final name.
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(unfinished)
            raise

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def is_pattern(self, path: str) -> bool:
        """A file whose very name is the pattern comes first: names may hold brackets."""
        return glob.has_magic(path) and not os.path.exists(path)

    def match(self, pattern: str) -> list[str]:
        return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]

    def identity(self, path: str) -> str:
        """Links are followed."""
        return os.path.realpath(path)
