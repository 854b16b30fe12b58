"""What one rank holds to stay in touch with the others: group, store clients, connections, threads; and their end."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from odb_stream.batching.cost import Integers
from odb_stream.config import World
from odb_stream.errors import ConfigError
from odb_stream.ranks.heartbeat import Heartbeat
from odb_stream.ranks.liveness import HUB, INVITATION_KEY, Liveness
from odb_stream.ranks.rendezvous import Rendezvous, StoreClient
from odb_stream.sample import Bytes

T = TypeVar("T")

LEAVE_SECONDS = 0.5
"""How long this rank's own waiting call may take to end after ``leave``, and its threads after ``close``.

Long enough for an operation that all ranks have joined; short, as nobody should wait for a rank that ends."""

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.005
"""Seconds between two looks at an operation: short at first, since most take less than a millisecond."""

LENGTHS, ARRAYS = 1, 2  # tags
OWN_SECONDS = 60.0
"""Gloo's own limit is this much longer than the timeout, so that our error, which names a rank, comes first."""


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


class GlooGroup:
    """The group, and its own part of the store.

    It is made without ``torch.distributed.new_group``, which either needs every rank of the job or, for a subset,
    gives the same name and the same part of the store to one group after another.
    """

    def __init__(self, world: World, timeout: float) -> None:
        self.size = world.size
        self._store: Any = _store_of(world)
        limit = timedelta(seconds=timeout + OWN_SECONDS)
        # The first ``size`` builders make the first group, the next ``size`` the second; no one has to number them.
        builders = self._store.add("odb_stream/builders", 1)
        self._place = f"odb_stream/{(builders - 1) // world.size}"
        self._group: Any = dist.ProcessGroupGloo(self._client("gloo"), world.rank, world.size, limit)

    def client(self) -> StoreClient:
        """A new connection to the group's part of the store, for one thread."""
        return cast(StoreClient, self._client("ranks"))

    def all_gather(self, values: Integers) -> Integers:
        """Shape (n,) on every rank to (size, n). Raises RuntimeError when gloo does."""
        if not len(values):
            return np.empty((self.size, 0), np.int64)
        rows = torch.empty((self.size, len(values)), dtype=torch.int64)
        work = self._group.allgather([list(rows.unbind(0))], [torch.from_numpy(values.copy())])
        # Not `work.wait()`: when a peer holds the operation up, this thread is left behind, and returning from native
        # code while the interpreter ends would abort the process.
        pause = FIRST_PAUSE
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        work.wait()  # raises what went wrong
        return cast(Integers, rows.numpy())

    def send_and_receive(self, outgoing: Mapping[int, Bytes], incoming: Sequence[int]) -> dict[int, Bytes]:
        """Point to point, between ranks that call it for each other. Raises RuntimeError when gloo does."""
        # All sends and receipts of lengths are posted before anything is waited for, so no circle of waiting can close.
        under_way = []
        lengths, arrays = {}, {}
        for other, array in outgoing.items():
            length = torch.tensor([len(array)], dtype=torch.int64)
            under_way.append(self._group.send([length], other, LENGTHS))
            if len(array):
                # A copy, because the sender may reuse its array while gloo still reads it.
                under_way.append(self._group.send([torch.from_numpy(array.copy())], other, ARRAYS))
        for other in incoming:
            length = torch.empty(1, dtype=torch.int64)
            lengths[other] = length, self._group.recv([length], other, LENGTHS)
        for other, (length, work) in lengths.items():
            work.wait()
            arrays[other] = torch.empty(int(length), dtype=torch.uint8)
            if len(arrays[other]):
                under_way.append(self._group.recv([arrays[other]], other, ARRAYS))
        # Unlike a gather: gloo marks these as completed only when they are waited for.
        for work in under_way:
            work.wait()
        return {other: cast(Bytes, array.numpy()) for other, array in arrays.items()}

    def let_go(self) -> None:
        """Free the group; blocks while an operation is under way."""
        del self._group

    def _client(self, part: str) -> Any:
        # Public and documented, but missing from the module's list of exports.
        return dist.PrefixStore(f"{self._place}/{part}", self._store.clone())  # type: ignore[attr-defined]


def _store_of(world: World) -> Any:
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"World.size is {world.size}, but torch.distributed is not initialized: call init_process_group before "
            "the Loader is built"
        )
    rank, size = dist.get_rank(world.group), dist.get_world_size(world.group)
    if (rank, size) != (world.rank, world.size):
        raise ConfigError(
            f"World says rank {world.rank} of {world.size}, but its process group says rank {rank} of {size}: "
            "pass the rank and size of that group, or no group"
        )
    group: Any = world.group or dist.group.WORLD
    if not hasattr(group, "get_group_store"):
        raise ConfigError(
            f"torch {torch.__version__} does not give a group's store: several ranks need torch 2.9 or later; a single "
            "rank runs with this version"
        )
    return group.get_group_store()
