"""Scripts of tests in a session of their own, and which processes of the session still run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waiting import PATIENCE, live_processes

HEAD = """
import os, signal, sys, threading
from odb_stream.errors import OdbStreamError
from odb_stream.workers.pool import WorkerPool
from odb_stream.sample import Record, SampleRef
from odb_stream.prepare.records import SourceStages, Prepare

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored

def opener(record):
    return {"input_ids": list(range(5))}

def hold(sample):
    os.write(1, f"{os.getpid()}\\n".encode())  # a line at once: several workers write into one pipe
    threading.Event().wait()

def records(count):
    return [Record(SampleRef(0, 0, i, -1), f"key{i}", "a.tar") for i in range(count)]

def pool_of(workers, *stages):
    return WorkerPool(Prepare((SourceStages(opener, stages),), 0), workers)
"""


def running(pid: int) -> bool:
    return pid in live_processes()


def signal_mask(pid: int, name: str) -> int:
    """A signal mask of a process by its name in /proc/PID/status: SigIgn (ignored) or SigBlk (blocked)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1], 16)


def session_members(session: int) -> list[int]:
    """The live processes of a session."""
    return [pid for pid, fields in live_processes().items() if fields[3] == str(session)]


@contextmanager
def script(source: str, tmp_path: Path, *arguments: str, head: str = HEAD) -> Iterator["subprocess.Popen[str]"]:
    """Run a script from a file in its own session; whatever is left of the session is killed in the end."""
    path = tmp_path / "script.py"
    path.write_text(head + source)
    process = subprocess.Popen(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):  # a worker that has just followed its parent
                os.kill(pid, 9)
        process.communicate()


def lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """The next lines that a script prints."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def finished(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit code, standard output and error of a script that ends by itself."""
    output, error = process.communicate(timeout=PATIENCE)
    return process.returncode, output, error
