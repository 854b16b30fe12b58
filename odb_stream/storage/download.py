"""Fetches one object in a thread, ahead of its reader: one request, and another for the rest after a broken connection.

::

    store  ->  _Fetch (a thread)  ->  Buffer  ->  FetchedStream (the reader)
"""

import io
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO

from odb_stream.errors import ShardError
from odb_stream.storage.access import StoreError
from odb_stream.storage.failures import CLIENT_ERRORS, Cause, Failure, explain
from odb_stream.storage.retries import Patience, RequestFailed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import GetResult, ObjectMeta

CHUNK = 512 * 1024
"""Bytes that the thread hands to the reader at once, at least; fewer just after a broken connection."""
READER_BYTES = 16 * 1024
"""Small reads, such as tar headers, are served from a buffer of this size."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Requests:
    """How a download asks for its object.

    ``get`` takes the byte to start at (None: the whole object) and the ETag to require; ``describe`` asks for size and
    ETag; ``explained`` turns a final failure into the error to raise.
    """

    name: str
    get: Callable[[int | None, str | None], "GetResult"]
    describe: Callable[[], "ObjectMeta"]
    explained: Callable[[RequestFailed], OSError]


@dataclass(frozen=True, slots=True)
class Version:
    """What distinguishes an object from another one of the same name."""

    size: int
    e_tag: str | None
    modified: datetime

    @classmethod
    def of(cls, meta: "ObjectMeta") -> "Version":
        """The version that a response describes."""
        return cls(meta["size"], meta["e_tag"], meta["last_modified"])

    def differs(self, other: "Version") -> bool:
        """Whether the two are different objects."""
        if self.e_tag is not None and other.e_tag is not None:
            return (self.size, self.e_tag) != (other.size, other.e_tag)
        return (self.size, self.modified) != (other.size, other.modified)

    @property
    def condition(self) -> str | None:
        """The ETag that a request may require; a weak one never matches such a condition."""
        return None if self.e_tag is None or self.e_tag.startswith("W/") else self.e_tag


class Buffer:
    """The bytes between the two threads: at most ``most``, plus one chunk."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._chunks: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._opened = self._ended = self._closed = False
        self._error: OSError | None = None

    def open(self) -> None:
        """Note that the first response has arrived."""
        with self._changed:
            self._opened = True
            self._changed.notify_all()

    def put(self, chunk: bytes) -> bool:
        """Add bytes as soon as there is room; False once the reader has closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._held < self._most or self._closed)
            if self._closed:
                return False
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._changed.notify_all()
            return True

    def end(self, error: OSError | None) -> None:
        """Note the end, and the error that caused it, if there was one."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def closed_within(self, seconds: float) -> bool:
        """Wait that long, or until the reader closes; returns whether it has closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def wait_open(self) -> None:
        """Wait for the first response. Raises the error that came instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened or self._ended)
            if not self._opened and self._error is not None:
                raise self._error

    def take(self) -> bytes:
        """The next bytes; none at the end. Raises the error that ended the stream, on every call."""
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
        """The reader is done: frees the bytes held, and the thread that waits for room."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._held = 0
            self._changed.notify_all()


class FetchedStream(io.RawIOBase):
    """The reader's end of a buffer. An error that ends it early is raised as a ShardError with the byte offset."""

    def __init__(self, buffer: Buffer, name: str, offset: int) -> None:
        super().__init__()
        self._buffer = buffer
        self._place = name
        self._at = offset
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: "WriteableBuffer") -> int:
        """Fill ``target``, or part of it if fewer bytes have arrived; 0 at the end."""
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
        """End the fetching, and throw away what was not read."""
        if not self.closed:
            self._buffer.close()
            self._rest = memoryview(b"")
        super().close()


def open_download(requests: Requests, offset: int, patience: Patience, *, read_ahead: int) -> BinaryIO:
    """A stream of the object's bytes from ``offset`` to its end.

    At most ``read_ahead`` bytes are fetched before they are read. Size and ETag of the first response hold for the
    whole stream; ``patience`` says how long a broken connection is retried. Raises OSError if the first request finally
    fails; later failures are ShardErrors of the read.
    """
    buffer = Buffer(read_ahead)
    fetch = _Fetch(requests, offset, buffer, patience, chunk=min(CHUNK, read_ahead))
    stream = FetchedStream(buffer, requests.name, offset)
    try:
        # A daemon: the end of the program does not wait for a server.
        threading.Thread(target=fetch.run, name="odb_stream-fetch", daemon=True).start()
        buffer.wait_open()
    except BaseException:
        stream.close()
        raise
    return io.BufferedReader(stream, READER_BYTES)


class _Fetch:
    """The thread's work: from a byte to the end of the object, into the buffer."""

    def __init__(self, requests: Requests, offset: int, buffer: Buffer, patience: Patience, *, chunk: int) -> None:
        self._requests = requests
        self._at = offset
        self._buffer = buffer
        self._patience = patience
        self._chunk = chunk
        self._version: Version | None = None
        self._ranged = True

    def run(self) -> None:
        """Fetch until the end, a final failure, or the reader closes."""
        error: OSError | None = StoreError("the thread that fetched it ended early")
        try:
            self._fetch()
            error = None
        except RequestFailed as failed:
            error = self._requests.explained(failed)
        finally:
            self._buffer.end(error)

    def _fetch(self) -> None:
        while (failure := self._try()) is not None:
            if failure.cause is Cause.UNRANGED and self._ranged:
                self._ranged = False
                logger.warning(
                    "%s: the server ignores byte ranges, so the file is read from its start and everything before byte "
                    "%d is thrown away; use a server that supports range requests",
                    self._requests.name,
                    self._at,
                )
            elif self._buffer.closed_within(self._patience.pause(failure)):
                return

    def _try(self) -> Failure | None:
        """One request for the rest; None when everything has arrived, or the reader has closed."""
        try:
            failure = self._receive()
        except CLIENT_ERRORS as error:
            failure = explain(error)
        if failure is not None and failure.cause is Cause.PAST_END:
            failure = self._compare_with_end()
        if failure is not None and failure.cause is Cause.CHANGED:
            words = "it was replaced while it was read; do not change shards during a run, and start again"
            failure = Failure(Cause.CHANGED, words)
        return failure

    def _receive(self) -> Failure | None:
        required = None if self._version is None else self._version.condition
        result = self._requests.get(self._at if self._at and self._ranged else None, required)
        version = Version.of(result.meta)
        if self._version is None:
            self._version = version
        elif self._version.differs(version):
            return Failure(Cause.CHANGED, "")
        self._buffer.open()
        place = result.range[0]
        if place > self._at:
            return Failure(Cause.PERMANENT, f"the server sent bytes from {place} on instead of {self._at}")
        # Just after a failure every byte counts as progress and resets the retry limit, so it is not held back until a
        # whole chunk has arrived.
        for chunk in result.stream(min_chunk_size=1 if self._patience.failing else self._chunk):
            wanted = chunk[self._at - place :] if place < self._at else chunk
            place += len(chunk)
            if not wanted:
                continue
            if not self._buffer.put(wanted):
                return None
            self._at += len(wanted)
            self._patience.progress()
        size = self._version.size
        if self._at < size:
            return Failure(Cause.TEMPORARY, f"the connection ended at byte {self._at} of {size}")
        if self._at > size:
            return Failure(Cause.PERMANENT, f"the server sent {self._at} bytes of an object of {size}")
        return None

    def _compare_with_end(self) -> Failure | None:
        """Why the server has nothing from this byte on."""
        try:
            version = Version.of(self._requests.describe())
        except CLIENT_ERRORS as error:
            return explain(error)
        if self._version is not None and self._version.differs(version):
            return Failure(Cause.CHANGED, "")
        if self._at > version.size:
            words = f"byte offset {self._at} lies beyond the end: the size is {version.size} bytes"
            return Failure(Cause.PERMANENT, words)
        if self._at < version.size:
            return Failure(Cause.TEMPORARY, f"the server says that nothing is at byte {self._at} of {version.size}")
        return None
