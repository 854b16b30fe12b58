"""Gloo: the transport between processes; it waits without ever being stuck, and says which rank it waited for.

Three threads share the work of a rank. A thread of its own blocks in the store and in gloo (``Jobs``); a second one
beats, listens for the end of other ranks, and calls off what can no longer be (``Heartbeat``); the caller only waits
for the first and looks at what the second knows.
"""

import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from odb_stream.batching.groups import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.config import World
from odb_stream.errors import AlignmentTimeout, ConfigError, PeerError
from odb_stream.ranks.connection import LEAVE_SECONDS, Link
from odb_stream.ranks.peer_events import News, name_ranks
from odb_stream.ranks.transport import Left, checked_exchange, checked_values
from odb_stream.sample import Bytes

T = TypeVar("T")

LOOK_SECONDS = 0.1
"""How often a waiting caller looks at what the heartbeat knows."""
GRACE_SECONDS = 5.0
"""How long an operation may go on after news that it will fail, or that a rank leaves once it is done."""
MISSED_BEATS = 3.5
"""After an error of gloo, a rank that has missed so many beats is the one that died."""


class Gloo:
    """A :class:`odb_stream.ranks.transport.Transport` over a gloo group of its own.

    Every rank of ``world`` builds it; building waits for the others. Those over the same process group are built in
    the same order on all ranks. ``torch.distributed`` must be initialized, with any backend and store.

    Args:
        world: this rank, their number, and the process group whose ranks they are.
        timeout: seconds without a sign of life after which a rank that is waited for counts as lost.
        interval: seconds between two signs of life.

    Raises:
        ConfigError: ``torch.distributed`` is not initialized, or does not fit ``world``.
        PeerError: the other ranks did not come to build it.
    """

    def __init__(self, world: World, *, timeout: float, interval: float = 1.0) -> None:
        if timeout <= 0 or interval <= 0:
            raise ConfigError(f"timeout is {timeout} s and interval {interval} s, but both must be positive")
        self.rank = world.rank
        self.size = self.processes = world.size
        self._timeout = timeout
        self._interval = min(interval, timeout / 10)
        try:
            self._link = link = Link(world, timeout, self._interval)
        except RuntimeError as error:
            raise PeerError(
                f"rank {world.rank} could not build a transport with the other {world.size - 1} ranks: every rank must "
                f"build its Loader, in the same order if there are several. {error}"
            ) from error
        self._group, self._rendezvous, self._heartbeat = link.group, link.rendezvous, link.heartbeat
        weakref.finalize(self, link.close)

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:  # noqa: ARG002 - see Transport
        """See :class:`odb_stream.ranks.transport.Transport`."""
        return self._run(partial(self._gather, checked_values(values)), range(self.size))

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        checked_exchange(self.rank, self.size, outgoing, incoming)
        return self._run(partial(self._exchange, dict(outgoing), list(incoming)), {*outgoing, *incoming})

    def leave(self) -> None:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        self._link.leave()

    def close(self) -> None:
        """See :class:`odb_stream.ranks.transport.Transport`.

        An operation that a peer holds up is left to end by itself; the group is freed then.
        """
        self._link.close()

    def _gather(self, values: Integers) -> "Integers | News":
        refusal = self._rendezvous.meet_all()
        if refusal is not None:
            return refusal
        with self._link.operation():
            return self._group.all_gather(values)

    def _exchange(self, outgoing: dict[int, Bytes], incoming: list[int]) -> "dict[int, Bytes] | News":
        pairs = [*((self.rank, other) for other in outgoing), *((other, self.rank) for other in incoming)]
        refusals = self._rendezvous.meet_pairs(pairs)
        # A rank that has come must be served, even when another has not.
        sent = {other: array for other, array in outgoing.items() if refusals[self.rank, other] is None}
        with self._link.operation():
            received = self._group.send_and_receive(sent, [o for o in incoming if refusals[o, self.rank] is None])
        return next((news for news in refusals.values() if news is not None), received)

    def _run(self, job: Callable[[], T | News], needed: Collection[int]) -> T:
        """The result of a job that needs these ranks; a transport's errors instead of those of gloo or the store."""
        if self._link.left.is_set():
            raise Left
        link, heartbeat = self._link, self._heartbeat
        heartbeat.waiting = True  # first, so that news which comes now is acted on
        try:
            if heartbeat.news is not None and len(needed) == self.size:
                # This rank has not come, so nothing was decided. And the store may be gone, after a proper end.
                raise self._stopped(heartbeat.news)
            future = link.jobs.submit(job)
            news_at = None
            while True:
                try:
                    result = future.result(LOOK_SECONDS)
                except TimeoutError:
                    news = heartbeat.about(needed)
                    if news is not None:
                        news_at = news_at or heartbeat.clock.now()
                    self._look(news, news_at)
                    continue
                except RuntimeError as error:  # of the store or of gloo
                    raise self._explain(error) from error
                if link.left.is_set():
                    raise Left
                if isinstance(result, News):
                    raise self._stopped(result)
                return result
        finally:
            heartbeat.waiting = False

    def _look(self, news: News | None, news_at: float | None) -> None:
        """Raise if there is no point in waiting any longer."""
        heartbeat, now = self._heartbeat, self._heartbeat.clock.now()
        if self._link.left.is_set():
            if now > self._link.left_at + LEAVE_SECONDS:
                raise Left
        elif news is not None:
            # Not at once: what ranks decide together they should also raise together, and a rank that leaves goes
            # through with an operation in which all have come together.
            at_once = self._link.in_operation and news.kind != "left"
            if at_once or now > (news_at or now) + GRACE_SECONDS:
                raise self._stopped(news)
        elif heartbeat.lost is not None:
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
        if self._link.left.is_set():
            return Left()
        heartbeat = self._heartbeat
        news = heartbeat.wait_for_news(MISSED_BEATS * self._interval + LOOK_SECONDS)
        if news is None and heartbeat.lost is not None:
            return PeerError(
                "the store in which the ranks meet is gone: the process that hosts it (most often rank 0, or the "
                f"launcher) has ended. {heartbeat.lost}"
            )
        if news is None:
            still = heartbeat.still(MISSED_BEATS * self._interval)
            heartbeat.publish(News("died", still) if still else News("broken", (self.rank,), str(error)))
            news = heartbeat.wait_for_news(GRACE_SECONDS) or News("broken", (self.rank,), str(error))
        return self._stopped(news)

    def _stopped(self, news: News) -> Exception:
        """The error of this rank after news; should the rank leave in its turn, it says the news first."""
        self._heartbeat.cause = news
        return news.error(self.rank)
