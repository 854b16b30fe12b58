"""Knows who is alive: a thread that counts up in the group's store, reads the others' counts and listens for deaths."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from odb_stream.ranks.liveness import HUB, Liveness
from odb_stream.ranks.peer_events import PeerEvent
from odb_stream.ranks.rendezvous import Rendezvous, StoreClient

MOST_SECONDS = 2.0
"""The most that counts between two readings of the clock; a running heartbeat reads it about once a second."""

RANKS_A_BEAT = 64
"""A rank reads all counts once in so many beats as this goes into the number of ranks, so that the load on the store
grows with the number of ranks and not with its square."""

READS_A_TIMEOUT = 4
"""However many the ranks, all counts are read at least so often within the timeout, or its length would mean little."""

EVENT_KEY = "event"


class RunningClock:
    """Seconds that this process ran, as seen by the threads that read the clock.

    A process that was stopped (by a signal, with a suspended job or machine) must not take its own pause for the
    silence of others: between two readings at most ``MOST_SECONDS`` pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._read = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        with self._lock:
            read = time.monotonic()
            self._seconds += min(read - self._read, MOST_SECONDS)
            self._read = read
            return self._seconds


class Ages:
    """For each rank, how long ago its count last changed. Pure: the caller brings the times.

    Counts carry no times, so the clocks of different hosts are never compared.
    """

    def __init__(self, size: int, now: float) -> None:
        self._counts = [b""] * size
        self._changed = [now] * size

    def record(self, counts: Sequence[bytes], now: float) -> None:
        """Take the counts of all ranks, as requested at ``now``."""
        for rank, count in enumerate(counts):
            if count != self._counts[rank]:
                self._counts[rank], self._changed[rank] = count, now

    def older_than(self, seconds: float, now: float) -> dict[int, float]:
        """The ranks whose count has not changed for longer than ``seconds``, with their ages."""
        ages = {rank: now - changed for rank, changed in enumerate(self._changed)}
        return {rank: age for rank, age in ages.items() if age > seconds}


class Heartbeat:
    """One rank's heartbeat. Each rank has a key in the store, in which it counts up or writes the event that ended it.

    ``first`` is the event that ended the common work, the same on all ranks; after it there is nothing to beat for.
    ``gone`` holds the event of each rank that no longer takes part. ``lost`` is the error with which the store was
    lost, at ``lost_at`` by ``clock``. ``is_waiting`` is true while a thread waits for other ranks, in
    ``while_waiting``: only then does silence matter.
    """

    def __init__(
        self,
        store: StoreClient,
        liveness: Liveness,
        rendezvous: Rendezvous,
        *,
        rank: int,
        size: int,
        interval: float,
        timeout: float,
        clock: RunningClock | None = None,
    ) -> None:
        self._store, self._liveness, self._rendezvous = store, liveness, rendezvous
        self._rank = rank
        self._interval, self._timeout = interval, timeout
        self._beats = [f"beat/{other}" for other in range(size)]
        self._read_every = max(1, min(size // RANKS_A_BEAT, int(timeout / (READS_A_TIMEOUT * interval))))
        self.clock = clock or RunningClock()
        self._ages = Ages(size, self.clock.now())
        self._count = 0
        self._complete = False
        self._answered = self.clock.now()
        self.is_waiting = False
        self._cause: PeerEvent | None = None
        self.first: PeerEvent | None = None
        self.gone: dict[int, PeerEvent] = {}
        self.lost: RuntimeError | None = None
        self.lost_at = 0.0
        self._changed = threading.Condition()
        self._inbox: list[PeerEvent] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="odb_stream-heartbeat", daemon=True)

    def start(self) -> None:
        if self._rank == HUB:
            self._store.set(EVENT_KEY, "")
        self._store.set(self._beats[self._rank], "0")
        self._thread.start()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Around a wait for other ranks. Enter it before looking at what is known, or an event may fall between."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    def publish(self, event: PeerEvent) -> None:
        """Let all ranks know; returns at once, from any thread."""
        with self._changed:
            self._inbox.append(event)
        self._liveness.wake()

    def blame(self, event: PeerEvent) -> None:
        """Note why this rank gives up: if it leaves now, it says this first."""
        self._cause = event

    def leave(self) -> None:
        """Let all ranks know that this one leaves; returns at once, from any thread."""
        event = PeerEvent("left", (self._rank,))
        # Sent from this thread, because the process may end before the heartbeat's thread gets to it. The cause goes
        # first, so that the others name the rank that began and not one that merely followed.
        for one in [event] if self._cause is None else [self._cause, event]:
            self._liveness.send(one)
        self.publish(event)

    def wait_for_event(self, seconds: float) -> PeerEvent | None:
        """The first event, after waiting for it for up to ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self.first is not None, seconds)
            return self.first

    def event_about(self, needed: Collection[int]) -> PeerEvent | None:
        """The event that ends a call that needs these ranks: the first of all, if it needs every rank."""
        if len(needed) == len(self._beats):
            return self.first
        return next((event for rank, event in list(self.gone.items()) if rank in needed), None)

    def silence(self) -> float:
        """Seconds since the store last answered."""
        return self.clock.now() - self._answered

    def silent(self, seconds: float) -> tuple[int, ...]:
        """The ranks without a sign of life for longer than that, as of the last answer of the store."""
        return tuple(self._ages.older_than(seconds, self._answered))

    def stop(self, seconds: float) -> None:
        """End the thread and the connections; wait for up to ``seconds``."""
        self._stopping = True
        self._liveness.wake()
        self._thread.join(seconds)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping:
            for event in self._liveness.listen(due - time.monotonic() if self._beats_on() else self._interval):
                self._take(event, received=True)
            # Read even when nobody needs the time: what passes unread beyond ``MOST_SECONDS`` is not counted.
            self.clock.now()
            self._take_inbox()
            # Checked a second time, because an event just received may say that the store's host has left.
            if self._beats_on() and time.monotonic() >= due:
                self._guarded(self._beat)
                due = time.monotonic() + self._interval
        # What ``leave`` published while the thread was being stopped must still reach the store.
        self._take_inbox()
        self._liveness.close()

    def _beats_on(self) -> bool:
        return self.lost is None and self._rank not in self.gone and (self.first is None or self.is_waiting)

    def _take_inbox(self) -> None:
        with self._changed:
            published, self._inbox = self._inbox, []
        for event in published:
            self._take(event, received=False)

    def _take(self, event: PeerEvent, *, received: bool) -> None:
        """Act on an event that did not come from the store; ``received`` over a connection."""
        fresh = [rank for rank in event.ranks if rank not in self.gone]
        if not fresh:
            return
        # The connections before the store: the store may vanish with its host.
        if self.first is None and (self._rank == HUB or not received):
            self._liveness.send(event)
        # Noted before ``is_waiting`` is read. The waiting thread sets that before it looks at what is noted, so one of
        # the two always sees the other.
        self._note(event)
        self._rendezvous.note_gone(self.gone)
        if self.is_waiting or not self._all_know(received):
            self._guarded(lambda: self._tell(event, fresh))
        if self.first is None:
            self._note_first(event)

    def _all_know(self, received: bool) -> bool:
        """Whether rank 0 has told everybody, or has left.

        Then the store's host may be gone, as after any proper end, and a call to it would print pages of warnings.
        """
        hub_left = HUB in self.gone and self.gone[HUB].kind == "left"
        return self._rank != HUB and (received or hub_left)

    def _tell(self, event: PeerEvent, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._store.set(self._beats[rank], event.encode())
        if self.first is None:
            # The first to write decides, so that all ranks name the same event.
            self._note_first(PeerEvent.decode(self._store.compare_set(EVENT_KEY, "", event.encode())))
        # Last: a rank that this wakes looks for the event, and finds it.
        self._rendezvous.call_off(self._store, self.gone)

    def _note(self, event: PeerEvent) -> None:
        with self._changed:
            self.gone = {**self.gone, **{rank: event for rank in event.ranks if rank not in self.gone}}
            self._changed.notify_all()

    def _note_first(self, event: PeerEvent) -> None:
        with self._changed:
            self.first = event
            self.gone = {**dict.fromkeys(event.ranks, event), **self.gone}  # its order is the same on all ranks
            self._changed.notify_all()

    def _guarded(self, call: Callable[[], None]) -> None:
        if self.lost is None:
            try:
                call()
            except RuntimeError as error:
                self.lost, self.lost_at = error, self.clock.now()

    def _beat(self) -> None:
        self._count += 1
        self._store.set(self._beats[self._rank], str(self._count))
        if not self._complete:
            # Reading a key before it exists would block.
            self._complete = self._store.check([EVENT_KEY, *self._beats])
            self._answered = self.clock.now()
            return
        # Ages run from when the counts were requested: a slow answer must not make them look older than they are.
        asked = self.clock.now()
        wanted = self._beats if self.first is not None or self._count % self._read_every == 0 else []
        first, *values = self._store.multi_get([EVENT_KEY, *wanted])
        self._answered = self.clock.now()
        self._ages.record(values, asked)
        known = len(self.gone), self.first
        if first and self.first is None:
            self._note_first(PeerEvent.decode(first))
        for value in values:
            if not value.isdigit():
                self._note(PeerEvent.decode(value))
        if (len(self.gone), self.first) != known:
            self._rendezvous.call_off(self._store, self.gone)
        elif self.is_waiting:
            self._look_for_silence(asked)

    def _look_for_silence(self, now: float) -> None:
        ages = self._ages.older_than(self._timeout, now)
        silent = {rank: age for rank, age in ages.items() if rank not in self.gone}
        if silent:
            detail = f"{max(silent.values()):.1f} s (timeout {self._timeout:g} s)"
            self._take(PeerEvent("silent", tuple(silent), detail), received=False)
