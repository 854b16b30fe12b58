"""What one rank holds to stay in touch with the others: group, store clients, connections, threads; and their end."""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from odb_stream.config import World
from odb_stream.ranks.gloo_group import GlooGroup
from odb_stream.ranks.heartbeat import Heartbeat
from odb_stream.ranks.liveness import HUB, INVITATION_KEY, Liveness
from odb_stream.ranks.rendezvous import Rendezvous

T = TypeVar("T")

LEAVE_SECONDS = 0.5
"""How long this rank's own waiting call may take to end after ``leave``, and its threads after ``close``.

Long enough for an operation that all ranks have joined; short, as nobody should wait for a rank that ends."""


class PeerConnection:
    """Built by all ranks together. It holds no reference to whoever uses it, so that it can outlive and end them.

    ``jobs`` runs what blocks; ``left`` is set once this rank leaves, at ``left_at`` by the heartbeat's clock;
    ``in_operation`` is true during an operation that all its ranks have joined.
    """

    def __init__(self, world: World, timeout: float, interval: float) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self.left = threading.Event()
        self.left_at = 0.0
        self.in_operation = False
        self.group = GlooGroup(world, timeout)
        self.rendezvous = Rendezvous(self.group.client(), rank=world.rank, size=world.size)
        liveness = Liveness(world.rank)
        # A client of its own for each thread: one that blocks in a call would hold up the other.
        store = self.group.client()
        if world.rank == HUB:
            store.set(INVITATION_KEY, liveness.invite(world.size))
        self.heartbeat = Heartbeat(
            store, liveness, self.rendezvous, rank=world.rank, size=world.size, interval=interval, timeout=timeout
        )
        if world.rank != HUB:
            store.wait([INVITATION_KEY], timedelta(seconds=timeout))
            liveness.connect(store.get(INVITATION_KEY))
        # Only now: once the thread runs, store and connections are its own.
        self.heartbeat.start()
        self.jobs = Jobs("odb_stream-transport")

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Around an operation of the group."""
        self.in_operation = True
        try:
            yield
        finally:
            self.in_operation = False

    def leave(self) -> None:
        """Tell the others that this rank leaves; returns at once, from any thread."""
        if self._in_a_copy():
            return
        with self._lock:
            if self.left.is_set():
                return
            self.left_at = self.heartbeat.clock.now()  # before the event: whoever sees it set reads the time
            self.left.set()
        self.heartbeat.leave()

    def close(self) -> None:
        """Leave and free everything; what a peer holds up is freed when that peer moves on or ends."""
        if self._in_a_copy():
            return
        self.leave()
        with self._lock:
            if self._closing is not None:
                return
            self._closing = self.jobs.finish(self._free)
        self.jobs.join(LEAVE_SECONDS)

    def _in_a_copy(self) -> bool:
        """Whether this is a forked child: it has a copy of this object, with its locks perhaps held, but no part in it.

        Must be asked before a lock is taken: the thread that holds it does not exist in the child.
        """
        return os.getpid() != self._process

    def _free(self) -> None:
        """The last job, when this rank has no operation under way."""
        self.group.let_go()
        self.heartbeat.stop(LEAVE_SECONDS)


class Jobs:
    """Runs blocking calls one after the other in a daemon thread, so that the caller stays free to look and give up."""

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        # A function and not a method: the thread must not keep this object alive.
        self._thread = threading.Thread(target=_work, args=(self._inbox,), name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Queue a job. One submitted after ``finish`` never runs."""
        future: Future[T] = Future()
        self._inbox.put((job, future))
        return future

    def finish(self, last: Callable[[], None]) -> "Future[None]":
        """Queue the last job; the thread ends after it."""
        future = self.submit(last)
        self._inbox.put(None)
        return future

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, for up to ``seconds``."""
        self._thread.join(seconds)


def _work(inbox: "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]") -> None:
    while (item := inbox.get()) is not None:
        job, future = item
        try:
            result = job()
        except BaseException as error:  # noqa: BLE001 - passed to the thread that submitted it, which raises it
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        # The thread must keep nothing alive while it waits for the next job.
        del item, job, future
