"""An HTTP server of the tests' own, which fails as it is told to: it drops, refuses, ignores ranges and lies."""

import contextlib
import hashlib
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote

# What a bucket answers to the requests of an upload in parts; one answer serves the start and the end of it.
UPLOADS = {
    "POST": b"<Result><Bucket>b</Bucket><Key>k</Key><UploadId>parts-1</UploadId><ETag>&quot;all&quot;</ETag></Result>",
    "PUT": b"",
    "DELETE": b"",
}


@dataclass(frozen=True)
class Fault:
    """What one request meets instead of a proper answer.

    ``status`` answers with an error; ``drop_after`` breaks the connection after so many bytes of the body; ``stall``
    answers nothing until the server ends; ``whole`` sends everything whatever was asked for; ``e_tag`` gives another
    ETag; ``length_off`` adds to the stated length and ``no_length`` leaves it out; ``then_holds`` is what the file
    holds for all later requests.
    """

    status: int | None = None
    body: bytes = b""
    drop_after: int | None = None
    stall: bool = False
    whole: bool = False
    e_tag: str | None = None
    length_off: int = 0
    no_length: bool = False
    then_holds: bytes | None = None


@dataclass(frozen=True)
class Seen:
    """One request: its method, its target as it came, and its headers in lower case."""

    method: str
    target: str
    headers: dict[str, str] = field(repr=False)

    @property
    def start(self) -> int:
        """The byte that the request starts at."""
        return int(self.headers.get("range", "bytes=0-").partition("=")[2].split("-")[0])


class FaultyServer:
    """Serves ``files`` (target without its query -> bytes) on a port of loopback, and takes uploads as a bucket does.

    Uploads are noted and thrown away. ``faults`` are met by the next requests, one each; ``always`` by all others. With
    ``tagged`` off no ETag is sent.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.tagged = True
        self.seen: list[Seen] = []
        self.ending = threading.Event()
        handler = type("Handler", (_Handler,), {"server_of_test": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"http://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_test: FaultyServer

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._answer()

    do_HEAD = do_PUT = do_DELETE = do_POST = do_GET  # noqa: N815 - the names that the base class looks for

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        server = self.server_of_test
        server.seen.append(Seen(self.command, self.path, {name.lower(): text for name, text in self.headers.items()}))
        try:
            fault = server.faults.popleft()  # one step: two requests may come at once
        except IndexError:
            fault = server.always or Fault()
        if fault.stall:
            server.ending.wait(60)
            self.close_connection = True
            return
        if self.command in UPLOADS:
            self._take(fault)
            return
        data = server.files.get(self.path.partition("?")[0], server.files.get(unquote(self.path)))
        if fault.status is not None or data is None:
            self._reply(fault.status or 404, fault.body)
            return
        if fault.then_holds is not None:
            server.files[self.path.partition("?")[0]] = fault.then_holds
        e_tag = fault.e_tag or f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        if self.headers.get("If-Match", e_tag) != e_tag:
            self._reply(412)
            return
        self._send(fault, data, e_tag if server.tagged else None)

    def _take(self, fault: Fault) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault.status is not None:
            self._reply(fault.status, fault.body)
        else:
            self._reply(200, UPLOADS[self.command], ETag='"part"')

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), "Retry-After": "1", **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send(self, fault: Fault, data: bytes, e_tag: str | None) -> None:
        first, last = 0, len(data)
        asked = self.headers.get("Range")
        if asked is not None and not fault.whole:
            start, _, end = asked.partition("=")[2].partition("-")
            first, last = int(start), min(int(end) + 1, len(data)) if end else len(data)
            if first >= len(data):
                self._reply(416)
                return
            self.send_response(206)
            off = fault.length_off
            self.send_header("Content-Range", f"bytes {first}-{last - 1 + off}/{len(data) + off}")
        else:
            self.send_response(200)
        if not fault.no_length:
            self.send_header("Content-Length", str(last - first + fault.length_off))
        self.send_header("Last-Modified", "Mon, 01 Jun 2020 10:00:00 GMT")
        if e_tag is not None:
            self.send_header("ETag", e_tag)
        if fault.no_length or fault.length_off:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        body = data[first:last]
        self.wfile.write(body if fault.drop_after is None else body[: fault.drop_after])
        if fault.drop_after is not None:
            self.wfile.flush()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
