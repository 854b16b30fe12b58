"""The transport between processes, over gloo. It waits without ever getting stuck, and says which rank it waited for.

Three threads share the work of a rank. One of its own blocks in the store and in gloo (``Jobs``). A second beats,
listens for the end of other ranks, and calls off what can no longer happen (``Heartbeat``). The caller only waits for
the first, and looks at what the second knows.
"""

import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from odb_stream.batching.cost import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.config import World
from odb_stream.errors import AlignmentTimeout, ConfigError, PeerError
from odb_stream.ranks.connection import LEAVE_SECONDS, PeerConnection
from odb_stream.ranks.peer_events import PeerEvent, name_ranks
from odb_stream.ranks.transport import Left, checked_exchange, checked_values
from odb_stream.sample import Bytes

T = TypeVar("T")

LOOK_SECONDS = 0.1
"""How often a waiting caller looks at what the heartbeat knows."""

GRACE_SECONDS = 5.0
"""How long an operation may run on after an event that will end it. The rendezvous decides for all ranks together, and
an operation that all have joined completes even though one of them leaves; a busy machine needs seconds for either."""

MISSED_BEATS = 3.5
"""After an error of gloo, the rank that died is one that has missed so many beats. Gloo itself often names none, or a
healthy one that gave up; half a beat on top, because a beat and its reading are not in step."""


class Gloo:
    """A :class:`odb_stream.ranks.transport.Transport` over a gloo group of its own.

    Every rank of ``world`` builds it, and building waits for the others. Those over the same process group must be
    built in the same order on all ranks. ``torch.distributed`` must be initialized, with any backend and store.

    Args:
        world: this rank, the number of ranks, and their process group.
        timeout: seconds without a sign of life after which a rank that is waited for counts as lost.
        interval: seconds between two signs of life.

    Raises:
        ConfigError: ``torch.distributed`` is not initialized, or does not fit ``world``.
        PeerError: the other ranks did not build theirs.
    """

    def __init__(self, world: World, *, timeout: float, interval: float = 1.0) -> None:
        if timeout <= 0 or interval <= 0:
            raise ConfigError(
                f"timeout is {timeout} s and interval {interval} s, but both must be positive (the loader's defaults "
                "are 600 and 1)"
            )
        self.rank = world.rank
        self.size = self.processes = world.size
        self._timeout = timeout
        # Several beats must fit into a timeout, or one late beat would look like a death.
        self._interval = min(interval, timeout / 10)
        try:
            self._peers = peers = PeerConnection(world, timeout, self._interval)
        except RuntimeError as error:
            raise PeerError(
                f"rank {world.rank} could not build a transport with the other {world.size - 1} ranks: every rank must "
                f"build its Loader, in the same order if there are several. {error}"
            ) from error
        self._group, self._rendezvous, self._heartbeat = peers.group, peers.rendezvous, peers.heartbeat
        # A loader that is forgotten without ``close`` must leave too, or its peers would wait for it.
        weakref.finalize(self, peers.close)

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:  # noqa: ARG002 - see Transport
        return self._run(partial(self._gather, checked_values(values)), range(self.size))

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        checked_exchange(self.rank, self.size, outgoing, incoming)
        return self._run(partial(self._exchange, dict(outgoing), list(incoming)), {*outgoing, *incoming})

    def leave(self) -> None:
        self._peers.leave()

    def close(self) -> None:
        # An operation that a peer holds up ends on its own later; the group is freed then.
        self._peers.close()

    def _gather(self, values: Integers) -> "Integers | PeerEvent":
        refusal = self._rendezvous.meet_all()
        if refusal is not None:
            return refusal
        with self._peers.operation():
            return self._group.all_gather(values)

    def _exchange(self, outgoing: dict[int, Bytes], incoming: list[int]) -> "dict[int, Bytes] | PeerEvent":
        pairs = [*((self.rank, other) for other in outgoing), *((other, self.rank) for other in incoming)]
        refusals = self._rendezvous.meet_pairs(pairs)
        # A rank that has arrived must be served, even if another has not.
        sent = {other: array for other, array in outgoing.items() if refusals[self.rank, other] is None}
        with self._peers.operation():
            received = self._group.send_and_receive(sent, [o for o in incoming if refusals[o, self.rank] is None])
        return next((event for event in refusals.values() if event is not None), received)

    def _run(self, job: Callable[[], T | PeerEvent], needed: Collection[int]) -> T:
        """The result of a job that needs these ranks; a transport's errors instead of those of gloo or the store."""
        if self._peers.left.is_set():
            raise Left
        peers, heartbeat = self._peers, self._heartbeat
        with heartbeat.while_waiting():
            if heartbeat.first is not None and len(needed) == self.size:
                # This rank has not arrived, so the others cannot have gone on without it. And the store may be gone,
                # as after any proper end, so it is not asked.
                raise self._stopped(heartbeat.first)
            future = peers.jobs.submit(job)
            event_at = None
            while True:
                try:
                    result = future.result(LOOK_SECONDS)
                except TimeoutError:
                    event = heartbeat.event_about(needed)
                    if event is not None:
                        event_at = event_at or heartbeat.clock.now()
                    self._look(event, event_at)
                    continue
                except RuntimeError as error:  # of the store or of gloo
                    raise self._explain(error) from error
                # The result is whole, but a caller that has left must not act on it.
                if peers.left.is_set():
                    raise Left
                if isinstance(result, PeerEvent):
                    raise self._stopped(result)
                return result

    def _look(self, event: PeerEvent | None, event_at: float | None) -> None:
        """Raise if waiting any longer is pointless."""
        heartbeat, now = self._heartbeat, self._heartbeat.clock.now()
        if self._peers.left.is_set():
            if now > self._peers.left_at + LEAVE_SECONDS:
                raise Left
        elif event is not None:
            # Before an operation, the rendezvous wakes this rank and decides for all alike. In one that all have
            # joined, a rank that leaves still does its part; after any other event the operation is lost at once.
            at_once = self._peers.in_operation and event.kind != "left"
            if at_once or now > (event_at or now) + GRACE_SECONDS:
                raise self._stopped(event)
        elif heartbeat.lost is not None:
            # The store vanishes with its host, whose death is heard over the connections at about the same time: that
            # names a rank, so it gets the chance to be first.
            if now > heartbeat.lost_at + GRACE_SECONDS:
                raise self._explain(heartbeat.lost) from heartbeat.lost
        elif heartbeat.silence() > self._timeout:
            raise AlignmentTimeout(
                f"{name_ranks(tuple(rank for rank in range(self.size) if rank != self.rank))} cannot be reached: the "
                f"store in which the ranks meet has not answered rank {self.rank} for {heartbeat.silence():.1f} s "
                f"(timeout {self._timeout:g} s). The network of this rank or of the store's host is cut, or that host "
                "is stopped"
            )

    def _explain(self, error: RuntimeError) -> Exception:
        """What an error of the store or of gloo means: most often that a rank has died, and then which."""
        if self._peers.left.is_set():
            return Left()
        heartbeat = self._heartbeat
        # Gloo notices a broken connection before the heartbeat can miss a beat.
        event = heartbeat.wait_for_event(MISSED_BEATS * self._interval + LOOK_SECONDS)
        if event is None and heartbeat.lost is not None:
            return PeerError(
                "the store in which the ranks meet is gone: the process that hosts it (most often rank 0, or the "
                f"launcher) has ended. {heartbeat.lost}"
            )
        if event is None:
            dead = heartbeat.silent(MISSED_BEATS * self._interval)
            heartbeat.publish(PeerEvent("died", dead) if dead else PeerEvent("broken", (self.rank,), str(error)))
            # What this rank published may not be the first event: all ranks must name the same one.
            event = heartbeat.wait_for_event(GRACE_SECONDS) or PeerEvent("broken", (self.rank,), str(error))
        return self._stopped(event)

    def _stopped(self, event: PeerEvent) -> Exception:
        """The error of this rank after an event, which it passes on first if it leaves in its turn."""
        self._heartbeat.blame(event)
        return event.error(self.rank)
