"""Objects in a store, through its client: requests are retried, and errors say what to check."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

import obstore

from odb_stream.storage import globs
from odb_stream.storage.access import Denied, Missing, StoreError
from odb_stream.storage.addresses import BUCKETS, log_name
from odb_stream.storage.download import Requests, open_download
from odb_stream.storage.failures import CLIENT_ERRORS, Cause, credentials_hint, explain, may_be_missing
from odb_stream.storage.options import Storage
from odb_stream.storage.retries import Patience, RequestFailed, retried
from odb_stream.storage.stores import bucket_store

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from obstore import GetOptions, GetResult, ObjectMeta, WritableFile
    from obstore.store import ObjectStore

PART_BYTES, PARTS_AT_ONCE = 8 * 1024 * 1024, 4
"""A file larger than a part is uploaded in parts of this size, this many at a time."""
LIST_PAGE = 1000

Result = TypeVar("Result")


class Objects:
    """Access to the objects of one bucket; :class:`odb_stream.storage.access.Access` describes the methods."""

    concurrent = True

    def __init__(self, scheme: str, bucket: str, options: Storage) -> None:
        self.scheme = scheme
        self.bucket = bucket
        self.options = options
        self._reached = False

    def open(self, path: str, offset: int) -> BinaryIO:
        """One request from the offset to the end; a thread reads ahead."""
        self._require_file(path)
        store, key = self._locate(path)
        patience = Patience(self._name(path), self.options.retry_seconds, known=self._reached)

        def get(start: int | None, e_tag: str | None) -> "GetResult":
            wanted: GetOptions = {}
            if start is not None:
                wanted["range"] = {"offset": start}
            if e_tag is not None:
                wanted["if_match"] = e_tag
            return obstore.get(store, key, options=wanted)

        requests = Requests(self._name(path), get, lambda: describe(store, key), self._problem)
        stream = open_download(requests, offset, patience, read_ahead=self.options.read_ahead)
        self._reached = True
        return stream

    def read(self, path: str, length: int | None) -> bytes:
        self._require_file(path)
        wanted: GetOptions = {} if length is None else {"range": (0, length)}
        try:
            return self._ask(path, lambda store, key: bytes(obstore.get(store, key, options=wanted).bytes()))
        except RequestFailed as failed:
            cause, problem = failed.failure.cause, self._problem(failed)
        if cause is Cause.PAST_END:
            # An empty object has no first byte to give.
            return b""
        if cause is Cause.UNRANGED:
            with self.open(path, 0) as stream:
                return stream.read(-1 if length is None else length)
        raise problem

    def size(self, path: str) -> int:
        self._require_file(path)
        return self._done(path, describe)["size"]

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except Missing:
            return False
        except Denied as denied:
            if not denied.may_be_missing:
                raise
            return False
        return True

    def require_writable(self, path: str) -> None:
        """The store refuses when an object is created."""

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Large files are uploaded in parts; if the block fails, the parts are thrown away."""
        self.require_writable(path)
        self._require_file(path)
        store = bucket_store(self.scheme, self.bucket, self.options, writing=True)
        writer = obstore.open_writer(store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        upload = Upload(writer, lambda failed: self._problem(failed, doing="writing"))
        try:
            yield cast(BinaryIO, upload)
        except BaseException as error:
            upload.abort(error)
            raise
        upload.finish()

    def remove(self, path: str) -> None:
        self.require_writable(path)
        with contextlib.suppress(Missing):
            self._done(path, obstore.delete, doing="writing")

    def is_pattern(self, path: str) -> bool:
        return globs.has_magic(path)

    def match(self, pattern: str) -> list[str]:
        return globs.matches(pattern, self._list, self._walk)

    def identity(self, path: str) -> str:
        return f"{self.scheme}://{self.bucket}/{path}"

    def _list(self, folder: str) -> tuple[list[str], list[str]]:
        def request(store: "ObjectStore", key: str) -> tuple[list[str], list[str]]:
            listed = obstore.list_with_delimiter(store, key or None)
            return list(listed["common_prefixes"]), [item["path"] for item in listed["objects"]]

        return self._done(folder, request)

    def _walk(self, folder: str) -> list[str]:
        def request(store: "ObjectStore", key: str) -> list[str]:
            pages = obstore.list(store, key or None, chunk_size=LIST_PAGE)
            return [item["path"] for page in pages for item in page]

        return self._done(folder, request)

    def _locate(self, path: str) -> "tuple[ObjectStore, str]":
        """The client, and the path as it names it."""
        return bucket_store(self.scheme, self.bucket, self.options), path

    def _name(self, path: str) -> str:
        return log_name(f"{self.scheme}://{self.bucket}/{path}")

    def _require_file(self, path: str) -> None:
        if not path or path.endswith("/"):
            raise IsADirectoryError

    def _ask(self, path: str, request: "Callable[[ObjectStore, str], Result]") -> Result:
        """The result of the request, retried where that helps. Raises RequestFailed."""
        store, key = self._locate(path)
        patience = Patience(self._name(path), self.options.retry_seconds, known=self._reached)
        result = retried(lambda: request(store, key), patience)
        self._reached = True
        return result

    def _done(self, path: str, request: "Callable[[ObjectStore, str], Result]", *, doing: str = "reading") -> Result:
        """The same, but raises OSError."""
        try:
            return self._ask(path, request)
        except RequestFailed as failed:
            raise self._problem(failed, doing=doing) from failed

    def _problem(self, failed: RequestFailed, *, doing: str = "reading") -> OSError:
        """The error to raise for a final failure."""
        failure = failed.failure
        if failure.cause is Cause.MISSING:
            return Missing(self._words_of_missing())
        if failure.cause is Cause.NO_BUCKET:
            return Missing(f"there is no {BUCKETS.get(self.scheme, 'bucket')} {self.bucket!r}")
        if failure.cause in (Cause.DENIED, Cause.NO_CREDENTIALS):
            words = credentials_hint(self.scheme, self.options, failure, doing=doing)
            return Denied(words, may_be_missing=may_be_missing(self.scheme, failure))
        return StoreError(str(failed))

    def _words_of_missing(self) -> str:
        return f"there is no such object in the {BUCKETS[self.scheme]} {self.bucket!r}"


def describe(store: "ObjectStore", key: str) -> "ObjectMeta":
    """Size and ETag by a HEAD request; if that is refused, by a GET, since only a GET's response says why."""
    try:
        return obstore.head(store, key)
    except CLIENT_ERRORS as error:
        if explain(error).cause in (Cause.TEMPORARY, Cause.NO_CREDENTIALS):
            raise
    try:
        return obstore.get(store, key, options={"range": (0, 1)}).meta
    except CLIENT_ERRORS as error:
        if explain(error).cause not in (Cause.UNRANGED, Cause.PAST_END):
            raise
    return obstore.get(store, key).meta


class Upload(io.RawIOBase):
    """A stream into a store's writer; the writer's errors become OSErrors without secrets."""

    def __init__(self, writer: "WritableFile", explained: Callable[[RequestFailed], OSError]) -> None:
        super().__init__()
        self._writer = writer
        self._explained = explained
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def write(self, data: "ReadableBuffer") -> int:
        """Pass bytes on; they are in the store when :meth:`finish` has returned."""
        count = self._guarded(lambda: self._writer.write(data))
        self._written += count
        return count

    def finish(self) -> None:
        """Finish the upload: the object appears, whole."""
        self._guarded(self._writer.close)

    def abort(self, error: BaseException) -> None:
        """Throw away what was sent, after an error of the caller or of the store."""
        with contextlib.suppress(*CLIENT_ERRORS):
            self._writer.__exit__(type(error), error, error.__traceback__)

    def _guarded(self, step: Callable[[], Result]) -> Result:
        try:
            return step()
        except CLIENT_ERRORS as error:
            failed = RequestFailed(explain(error), "tried as long as Storage.retry_seconds says")
        # Outside the handler: the client's error, whose text may hold a secret, must not become the context.
        raise self._explained(failed)
