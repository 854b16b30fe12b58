"""A shard's bytes in one pass, with their offset: exact reads from a stream that only goes forward."""

from typing import BinaryIO

from odb_stream.config import MEBIBYTE
from odb_stream.errors import ShardError

MOST_AT_ONCE = 16 * MEBIBYTE
"""Bytes of one read: a damaged size must not ask for memory that the file cannot fill."""


class ByteCursor:
    """Reads the bytes of a shard from byte ``start`` on; ``at`` is the offset of the next byte.

    ``name`` is the shard's address, fit for messages. At ``limit``, where there is one, reading ends as at the end of
    the file; :meth:`enter` moves on to another part.
    """

    def __init__(self, name: str, stream: BinaryIO, start: int) -> None:
        self.name = name
        self.start = start
        self.at = start
        self.limit: int | None = None
        self._stream = stream

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer only at the end. Raises ShardError where the file cannot be read."""
        if self.limit is not None:
            size = min(size, self.limit - self.at)
        parts: list[bytes] = []
        while size and (part := self._pull(min(size, MOST_AT_ONCE))):
            parts.append(part)
            size -= len(part)
        data = b"".join(parts)
        self.at += len(data)
        return data

    def advance(self, offset: int) -> bool:
        """Move forward to a byte offset; False where the end comes first."""
        while self.at < offset:
            if not self.read(min(offset - self.at, MEBIBYTE)):
                return False
        return True

    def enter(self, offset: int, limit: int | None) -> None:
        """Move forward to the part that begins at ``offset`` and ends at ``limit``, or at the end of the file."""
        self.limit = None
        self.advance(offset)
        self.start, self.limit = offset, limit

    def _pull(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise ShardError(
                f"{self.name}, byte offset {self.at}: cannot be read ({error.strerror or error}); "
                "check the disk or the connection and start again"
            ) from error
