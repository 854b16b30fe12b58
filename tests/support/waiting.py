"""How tests wait: for a condition, and for the end of threads and processes; and what this process still has open."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Seconds after which a test gives up. Only what hangs takes nearly as long, even on a busy machine."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail when it does not."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"still not so after {PATIENCE} s"
        threading.Event().wait(0.01)


def background_threads(prefix: str = "odb_stream") -> list[threading.Thread]:
    """The running threads whose names begin so: by default those of the package."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def threads_end(prefix: str = "odb_stream") -> None:
    """Wait for the end of these threads; fail when one does not end."""
    for thread in background_threads(prefix):
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name


def nothing_is_left() -> None:
    """Wait for the end of everything that a closed loader had running."""
    threads_end()
    assert background_threads() == []
    eventually(lambda: children() == [])


def stat(pid: int) -> list[str] | None:
    """State, parent, group and session of a process (as in /proc/PID/stat), or None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def live_processes() -> dict[int, list[str]]:
    """The processes that still run, each with what :func:`stat` says of it."""
    every = {int(path.name): stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    return {pid: fields for pid, fields in every.items() if fields and fields[0] not in "ZX"}


def children(parent: int = 0) -> list[int]:
    """The running processes that this one, or ``parent``, has started."""
    return [pid for pid, fields in live_processes().items() if fields[1] == str(parent or os.getpid())]


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def native_threads() -> int:
    """How many threads this process has, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def shared_memory() -> set[str]:
    """The names of the shared memory on this machine."""
    return set(os.listdir("/dev/shm"))
