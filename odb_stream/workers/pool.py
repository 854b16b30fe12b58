"""Prepares chunks of records in worker processes, or inline, and reports at once if a worker is gone."""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from odb_stream.config import require_int
from odb_stream.errors import ConfigError, OdbStreamError, WorkerError
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.prepare.decoding import Decoded
from odb_stream.prepare.records import Prepare
from odb_stream.sample import PreparedSample, Record
from odb_stream.workers.process import PROTOCOL, DecodeTask, Done, FromWorker, PrepareTask, Ready, Task, Unfit, serve
from odb_stream.workers.spawnable import pickle_for_workers

GUARD = 'if __name__ == "__main__":'
CLOSED = "the worker pool is closed: build a new Loader to continue."
EXIT_SECONDS = 5.0
"""How long a worker that hung up may take to exit by itself."""


class WorkerPool:
    """Prepares chunks of records in ``workers`` spawned processes; with 0, in the calling thread.

    The processes hold no state but the pipeline, which they are sent once. The constructor starts them and does not
    wait for them. A worker that ends for whatever reason ends the pool: every chunk still awaited and every later
    ``submit`` raises WorkerError with the exit and the way out. Close the pool, or use it as a context manager; a pool
    that is garbage collected, or alive when the interpreter exits, is closed too.

    Raises ConfigError if worker processes could not work (see ``pickle_for_workers``).
    """

    def __init__(self, prepare: Prepare, workers: int) -> None:
        require_int("workers", workers, minimum=0)
        self.workers = workers
        self._prepare = prepare
        self._closed = False
        self._processes = WorkerProcesses(pickle_for_workers(prepare), workers) if workers else None
        if self._processes is not None:
            # Not a __del__: a finalizer also runs when the interpreter exits.
            weakref.finalize(self, self._processes.end, CLOSED)

    def submit(self, records: Sequence[Record]) -> "Future[PreparedChunk]":
        """Have a chunk of records prepared. The future cannot be cancelled; chunks may finish in any order.

        The caller bounds how many are under way at once: each holds its records. Raises WorkerError if the pool is
        closed or a worker has ended.
        """
        if self._processes is not None:
            words = f"preparing {len(records)} records from {records[0].where}"
            return self._processes.submit(PrepareTask.of(records), words)
        self._require_open()
        future: Future[PreparedChunk] = Future()
        future.set_result(self._prepare.chunk(records))
        return future

    def submit_decode(self, sample: PreparedSample) -> "Future[Decoded | OdbStreamError]":
        """Have the images of one sample decoded; otherwise as :meth:`submit`."""
        task = DecodeTask(sample.ref.source, sample.images, sample.where)
        if self._processes is not None:
            return self._processes.submit(task, f"decoding {len(sample.images)} images of {sample.where}")
        self._require_open()
        future: Future[Decoded | OdbStreamError] = Future()
        future.set_result(task.run(self._prepare))
        return future

    def wait(self, future: "Future[PreparedChunk]") -> PreparedChunk:
        """Wait for a submitted chunk; Ctrl-C interrupts. Raises WorkerError if a worker ended, and on ``close``."""
        return future.result()

    def wait_decoded(self, future: "Future[Decoded | OdbStreamError]") -> Decoded:
        """Wait for decoded images; also raises the error of a transform."""
        result = future.result()
        if isinstance(result, OdbStreamError):
            raise result
        return result

    def _require_open(self) -> None:
        if self._closed:
            raise WorkerError(CLOSED)

    def close(self) -> None:
        """End the workers and fail whatever is awaited. Returns at once and may be called again.

        The processes and the listening thread are gone a moment later.
        """
        self._closed = True
        if self._processes is not None:
            self._processes.end(CLOSED)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Worker:
    """One worker process as the main process sees it; ``pending`` maps the numbers of its tasks to who awaits them."""

    def __init__(self, name: str, pipeline: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.ready = False
        self.pending: dict[int, tuple[Future[Any], str]] = {}
        self.connection, theirs = context.Pipe()
        # With no other copy of the worker's end, its death closes the stream, even in the middle of a message.
        with theirs:
            self.process: SpawnProcess = context.Process(target=serve, args=(theirs,), name=name, daemon=True)
            self.process.start()
        self._sending = threading.Lock()
        # Not an argument of the process: `start` waits until the child has read those, forever if it dies before.
        self._unsent = [pipeline]

    def send(self, *tasks: bytes) -> None:
        """Send the pipeline, if unsent, and tasks. A worker that is gone is not an error here: its end is reported."""
        with self._sending, contextlib.suppress(OSError):
            self._unsent.extend(tasks)
            while self._unsent:
                self.connection.send_bytes(self._unsent.pop(0))

    def became_ready(self) -> None:
        self.ready = True

    def reap(self) -> int | None:
        """Wait for the exit of a process that hung up, release its resources and return the exit code."""
        self.process.join(EXIT_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        # Under the lock: another thread may be sending, and the descriptor's number may be reused at once.
        with self._sending:
            self.connection.close()
        return self.process.exitcode


class WorkerProcesses:
    """The processes of one pool and the thread that listens to them.

    Each worker has a connection of its own, and no lock or queue is shared: a process that is killed at any moment can
    neither block the others nor leave half a message in a shared stream (a ``ProcessPoolExecutor`` would hang).
    The thread refers to this object and not to the pool, so that a forgotten pool is collected.
    """

    def __init__(self, pipeline: bytes, size: int) -> None:
        self._owner = os.getpid()
        # Reentrant, because the garbage collector may run `end` in a thread that already holds it.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._ended_because: str | None = None
        self._workers: list[_Worker] = []
        try:
            with _sigint_blocked():
                for number in range(1, size + 1):
                    self._workers.append(_Worker(f"worker {number} of {size}", pipeline))
        except BaseException as error:  # Ctrl-C included: no process is left behind
            self.end("the workers could not start")
            for worker in self._workers:
                worker.reap()
            if isinstance(error, RuntimeError):  # multiprocessing's own answer to this
                raise ConfigError(
                    "worker processes were asked for by a worker process that was importing the main module: put the "
                    f"script's own code under `{GUARD}`."
                ) from error
            if isinstance(error, OSError):
                raise WorkerError(
                    f"worker {len(self._workers) + 1} of {size} could not start ({error}): ask for fewer workers, or "
                    "raise the limit on processes, open files or memory."
                ) from error
            raise
        threading.Thread(target=self._listen, name="odb_stream-workers", daemon=True).start()

    def submit(self, task: Task, words: str) -> "Future[Any]":
        """Send a task to the worker with the fewest; ``words`` say what the task is."""
        number = next(self._numbers)
        packed = pickle.dumps((number, task), PROTOCOL)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._ended_because is not None:
                raise WorkerError(self._ended_because)
            worker = min(self._workers, key=lambda worker: len(worker.pending))
            worker.pending[number] = (future, words)
        worker.send(packed)
        return future

    def end(self, reason: str) -> None:
        """Kill the workers, and fail whatever is awaited, with this reason; only the first call counts."""
        if os.getpid() != self._owner:
            return  # a forked copy of the pool: the processes belong to the original
        with self._lock:
            if self._ended_because is not None:
                return
            self._ended_because = reason
            awaited = [future for worker in self._workers for future, _ in worker.pending.values()]
            for worker in self._workers:
                worker.pending.clear()
                worker.process.kill()
        # Outside the lock: this wakes the waiting threads and runs callbacks, which may call the pool.
        for future in awaited:
            future.set_exception(WorkerError(reason))

    def _listen(self) -> None:
        try:
            for worker in list(self._workers):
                worker.send()  # the pipeline; it may exceed what a pipe holds, so not in the constructor's thread
            while self._workers:
                speakers = {worker.connection: worker for worker in self._workers}
                heard = wait(list(speakers))
                for connection, worker in speakers.items():
                    if connection in heard:
                        self._hear(worker)
        finally:
            self.end("the thread that listens to the workers has failed; its traceback is on standard error.")

    def _hear(self, worker: _Worker) -> None:
        """Take one message of a worker, or its end."""
        try:
            message: FromWorker = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            first = next(iter(worker.pending.values()), None)
            exit_code = worker.reap()
            process = f"{worker.name} (pid {worker.process.pid})"
            self.end(describe_exit(process, exit_code, ready=worker.ready, task=first[1] if first else None))
            with self._lock:
                self._workers.remove(worker)
            return
        match message:
            case Ready():
                worker.became_ready()
            case Unfit(cause):
                self.end(
                    f"{worker.name} could not rebuild the pipeline it was sent: {cause}. Every stage must unpickle in "
                    "a fresh process: what it needs must be importable there and not depend on this process's state."
                )
            case Done(number, answer):
                with self._lock:
                    awaited = worker.pending.pop(number, None)
                if awaited is not None:
                    awaited[0].set_result(answer)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start processes with SIGINT blocked, so that Ctrl-C in their first second prints no tracebacks.

    A process inherits the mask; a worker unblocks the signal once it ignores it.
    """
    resource_tracker.ensure_running()  # started by the first process, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_exit(process: str, exit_code: int | None, *, ready: bool, task: str | None) -> str:
    """One message for a process that ended unasked.

    ``exit_code`` is negative for a signal, as ``multiprocessing.Process.exitcode`` is. ``ready``: whether the process
    had finished starting. ``task``: what it was doing; None if it was waiting for work.
    """
    killed_by = _signal_name(-exit_code) if exit_code is not None and exit_code < 0 else None
    ended = f"{process} was killed by {killed_by}" if killed_by else f"{process} ended with exit code {exit_code}"
    if not ready and not killed_by:
        return (
            f"{ended} before it was ready. Its traceback is on standard error. Workers import the main module: a "
            f"script's own code must be under `{GUARD}`, and its imports must work in a fresh process."
        )
    doing = (task or "waiting for work") if ready else "starting"
    return f"{ended} while {doing}. {_way_out(killed_by)}"


def _way_out(killed_by: str | None) -> str:
    if killed_by is None:
        return "A stage, or a library under it, ended the process: run with workers=0 to see where."
    if killed_by in ("SIGKILL", "SIGTERM"):
        return (
            "Something outside sent it. SIGKILL usually comes from the kernel, out of memory (its log names the "
            "process): use fewer workers, or stages that take less memory."
        )
    return "That is a crash in native code: run with workers=0 under `python -X faulthandler` to find the stage."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
