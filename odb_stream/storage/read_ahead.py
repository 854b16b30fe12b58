"""Bytes between the thread that fetches an object and the one that reads it, and the stream that the reader sees."""

import io
import threading
from collections import deque
from typing import TYPE_CHECKING

from odb_stream.errors import ShardError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Buffer:
    """Holds at most ``most`` bytes, and one chunk more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._chunks: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._opened = self._ended = self._closed = False
        self._error: OSError | None = None

    def open(self) -> None:
        """Say that the first answer came."""
        with self._changed:
            self._opened = True
            self._changed.notify_all()

    def put(self, chunk: bytes) -> bool:
        """Add bytes when there is room for them; False once the reader has closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._held < self._most or self._closed)
            if self._closed:
                return False
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._changed.notify_all()
            return True

    def end(self, error: OSError | None) -> None:
        """Say that nothing more comes, and what went wrong, if anything did."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def closed_within(self, seconds: float) -> bool:
        """Wait that long, or until the reader closes; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def wait_open(self) -> None:
        """Wait for the first answer. Raises what went wrong instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened or self._ended)
            if not self._opened and self._error is not None:
                raise self._error

    def take(self) -> bytes:
        """The next bytes; none at the end. Raises the error that ended the stream, as often as it is asked."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._ended or self._closed)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._held -= len(chunk)
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise self._error
            return b""

    def close(self) -> None:
        """The reader needs no more: frees what is held, and the thread that waits for room."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._held = 0
            self._changed.notify_all()


class Stream(io.RawIOBase):
    """The reader's end of a buffer. What ends it early is a ShardError, with the byte."""

    def __init__(self, buffer: Buffer, name: str, offset: int) -> None:
        super().__init__()
        self._buffer = buffer
        self._place = name
        self._at = offset
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, target: "WriteableBuffer") -> int:
        """Fill ``target``, or a part of it where no more bytes are there yet; 0 at the end."""
        if not self._rest:
            try:
                self._rest = memoryview(self._buffer.take())
            except OSError as error:
                raise ShardError(f"{self._place}, byte offset {self._at}: {error}") from error
        view = memoryview(target).cast("B")
        length = min(len(view), len(self._rest))
        view[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        self._at += length
        return length

    def close(self) -> None:
        """End the fetching; what was not read is thrown away."""
        if not self.closed:
            self._buffer.close()
            self._rest = memoryview(b"")
        super().close()
