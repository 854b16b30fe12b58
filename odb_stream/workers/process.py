"""What runs inside a worker process, and what it exchanges with the main process."""

import os
import pickle
import queue
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn

from odb_stream.errors import OdbStreamError
from odb_stream.prepare.chunk import PreparedChunk, portable
from odb_stream.prepare.decoding import Decoded
from odb_stream.prepare.records import Prepare
from odb_stream.sample import Drop, PreparedImage, Record, SampleRef

PROTOCOL = 5
"""Of pickle: from 5 on, numpy arrays are written without an intermediate copy."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its pipeline and accepts tasks."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The worker could not rebuild the pipeline; ``cause`` in words."""

    cause: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to the task of that number."""

    number: int
    answer: PreparedChunk | Decoded | OdbStreamError


FromWorker = Ready | Unfit | Done


@dataclass(frozen=True, slots=True)
class PrepareTask:
    """Prepare a chunk of records.

    It holds plain tuples, which pickle in a quarter of the time that records take. Positions are left out: no stage
    reads them.
    """

    plain: list[tuple[tuple[int, ...], str, str, dict[str, bytes], int, Drop | None]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> "PrepareTask":
        return cls([(tuple(r.ref), r.key, r.shard, dict(r.members), r.epoch, r.damage) for r in records])

    def run(self, prepare: Prepare) -> PreparedChunk:
        return prepare.chunk(
            [
                Record(SampleRef(*ref), key, shard, members, epoch=epoch, damage=damage)
                for ref, key, shard, members, epoch, damage in self.plain
            ]
        )


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """Decode the images of one sample of a source."""

    source: int
    images: tuple[PreparedImage, ...]
    where: str

    def run(self, prepare: Prepare) -> Decoded | OdbStreamError:
        """The decoded images, a drop, or the error of a transform, in a form that can be sent."""
        try:
            return prepare.decode(self.source, self.images, self.where)
        except OdbStreamError as error:
            return portable(error)


Task = PrepareTask | DecodeTask


def serve(connection: Connection) -> None:
    """Rebuild the pipeline (the first thing sent), then run tasks for the main process until it hangs up.

    A thread reads what is sent, so that the main process never blocks on a send. The thread also notices when the main
    process closes the connection or is gone, and then ends this process at once.
    """
    # Ctrl-C reaches every process of the terminal's group; only the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(connection, inbox), name="odb_stream-inbox", daemon=True)
    reader.start()
    pipeline = inbox.get()
    try:
        prepare: Prepare = pickle.loads(pipeline)
    except Exception as error:  # noqa: BLE001 - a stage's own code runs here and may raise anything
        _send(connection, Unfit(f"{type(error).__name__}: {error}"))
        reader.join()
    _send(connection, Ready())
    while True:
        number, task = pickle.loads(inbox.get())
        _send(connection, Done(number, task.run(prepare)))


def _read(connection: Connection, inbox: "queue.SimpleQueue[bytes]") -> NoReturn:
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        # No clean-up: the main thread may be deep in native code, and no process is left to report to.
        os._exit(0)


def _send(connection: Connection, message: FromWorker) -> None:
    try:
        connection.send_bytes(pickle.dumps(message, PROTOCOL))
    except OSError:
        # The main process is gone or has hung up, and the reading thread is about to notice the same.
        os._exit(0)
