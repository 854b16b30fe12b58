"""What one rank holds to stay in touch with the others: group, store clients, lines and threads, and how they end."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta

from odb_stream.config import World
from odb_stream.ranks.gloo_group import GlooGroup
from odb_stream.ranks.heartbeat import Heartbeat
from odb_stream.ranks.jobs import Jobs
from odb_stream.ranks.liveness import HUB, LINE_KEY, Lifelines
from odb_stream.ranks.rendezvous import Rendezvous

LEAVE_SECONDS = 0.5
"""How long this rank's own waiting call may take to end after ``leave``, and its threads after ``close``."""


class Link:
    """Built by all ranks together. It holds no reference to whoever uses it, so that it can outlive and end them.

    ``jobs`` runs what blocks; ``left`` is set once this rank leaves, at ``left_at`` by the heartbeat's clock;
    ``in_operation`` is true while an operation in which all have come together is under way.
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
        self._lines = Lifelines(world.rank)
        store = self.group.client()
        if world.rank == HUB:
            store.set(LINE_KEY, self._lines.invite(world.size))
        self.heartbeat = Heartbeat(
            store, self._lines, self.rendezvous, rank=world.rank, size=world.size, interval=interval, timeout=timeout
        )
        if world.rank != HUB:
            store.wait([LINE_KEY], timedelta(seconds=timeout))
            self._lines.connect(store.get(LINE_KEY))
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
            self.left_at = self.heartbeat.clock.now()
            self.left.set()
        self.heartbeat.leave()

    def close(self) -> None:
        """Leave, and free everything; what a peer holds up is freed when that peer goes on or ends."""
        if self._in_a_copy():
            return
        self.leave()
        with self._lock:
            if self._closing is not None:
                return
            self._closing = self.jobs.finish(self._free)
        self.jobs.join(LEAVE_SECONDS)

    def _in_a_copy(self) -> bool:
        """Whether this is a forked child: it has a copy of this object, its locks perhaps held, but no part in it."""
        return os.getpid() != self._process

    def _free(self) -> None:
        """The last job: nothing of this rank is under way any more."""
        self.group.let_go()
        self.heartbeat.stop(LEAVE_SECONDS)
