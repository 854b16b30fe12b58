"""How ranks exchange what they must agree on: the contract, and its forms for one rank and for ranks that are threads.

The form for real ranks is :class:`odb_stream.ranks.gloo.Gloo`.
"""

import threading
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from odb_stream.batching.groups import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.ranks.peer_events import News
from odb_stream.sample import Bytes


class Left(Exception):
    """This rank left by itself; no error of the hierarchy, since nobody but this rank's own thread hears of it."""


class Transport(Protocol):
    """One rank's end of the line. One thread calls ``gather`` and ``exchange``; all ranks make the same gathers.

    Either all ranks complete a gather or none does, except when a rank dies in the middle of it.
    """

    rank: int
    size: int
    processes: int
    """How many processes take part: more than ranks where several share one."""

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:
        """All ranks' values: shape (n,), the same n on all ranks, becomes (size, n), row r from rank r.

        ``choose`` picks the row of a rank that several processes share; transports with one process a rank ignore it.

        Raises:
            PeerError: another rank left, died, or gave no sign of life within the timeout (AlignmentTimeout).
            Left: this rank left.
        """
        ...

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """Send each rank in ``outgoing`` its array, receive one from each rank in ``incoming``; any lengths, 1-D.

        Called between two gathers, and only by the ranks that send or receive. Raises as ``gather`` does.
        """
        ...

    def leave(self) -> None:
        """End this rank's part, for good; from any thread, returns at once.

        A ``gather`` or ``exchange`` in which this rank waits raises Left; so do later ones. One in which all ranks
        have come together is gone through first. Peers that wait for this rank, now or later, raise a PeerError.
        """
        ...

    def close(self) -> None:
        """Leave and free group, threads and descriptors; returns at once, may be called again."""
        ...


class Local:
    """The transport of a run with one rank."""

    rank = 0
    size = 1
    processes = 1

    def __init__(self) -> None:
        self._left = False

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:  # noqa: ARG002 - see Transport
        """``values`` as the only row."""
        if self._left:
            raise Left
        return checked_values(values)[None].copy()

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """Nothing: there is no other rank."""
        checked_exchange(0, 1, outgoing, incoming)
        if self._left:
            raise Left
        return {}

    def leave(self) -> None:
        """Later calls raise Left."""
        self._left = True

    def close(self) -> None:
        """As ``leave``."""
        self._left = True


@dataclass
class _Meeting:
    """A point that ``members`` must all reach; ``refusal`` is set when that can no longer be."""

    members: frozenset[int]
    brought: dict[int, Any] = field(default_factory=dict)
    refusal: News | None = None
    read: int = 0

    @property
    def decided(self) -> bool:
        return self.refusal is not None or len(self.brought) == len(self.members)

    def call_off(self, gone: Mapping[int, News]) -> None:
        """Refuse for the first of those who are gone, if a member is among them."""
        if not self.decided:
            self.refusal = next((news for rank, news in gone.items() if rank in self.members), None)


class InMemoryHub:
    """Joins ``size`` ranks that are threads of one process; for tests and demonstrations."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._meetings: dict[Hashable, _Meeting] = {}
        self._gone: dict[int, News] = {}

    def transport(self, rank: int) -> "InMemory":
        """The end of one rank."""
        return InMemory(self, rank)

    def fail(self, rank: int) -> None:
        """Let a rank die: its own calls end, and its peers raise a PeerError that names it."""
        self.end(News("died", (rank,)))

    def end(self, news: News) -> None:
        """Call off what is undecided and needs the ranks that the news is about."""
        with self._changed:
            self._gone |= {rank: news for rank in news.ranks if rank not in self._gone}
            for meeting in self._meetings.values():
                meeting.call_off(self._gone)
            self._changed.notify_all()

    def meet(self, rank: int, points: Mapping[Hashable, tuple[frozenset[int], Any]]) -> dict[Hashable, dict[int, Any]]:
        """Bring something to each point (its members, what this rank brings) and wait until all are decided.

        Returns what each member brought to each point. Raises Left or PeerError.
        """
        with self._changed:
            if rank in self._gone:
                raise Left
            meetings = {point: self._arrive(point, rank, *brought) for point, brought in points.items()}
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(meeting.decided for meeting in meetings.values()))
            for point, meeting in meetings.items():
                meeting.read += 1
                if meeting.read == len(meeting.members):
                    del self._meetings[point]
            if rank in self._gone:
                raise Left
            for meeting in meetings.values():
                if meeting.refusal is not None:
                    raise meeting.refusal.error(rank)
            return {point: meeting.brought for point, meeting in meetings.items()}

    def _arrive(self, point: Hashable, rank: int, members: frozenset[int], brought: Any) -> _Meeting:
        meeting = self._meetings.setdefault(point, _Meeting(members))
        meeting.call_off(self._gone)
        if meeting.refusal is None:
            meeting.brought[rank] = brought
        return meeting


class InMemory:
    """One rank's end of an :class:`InMemoryHub`."""

    def __init__(self, hub: InMemoryHub, rank: int) -> None:
        self.rank = rank
        self.size = self.processes = hub.size
        self._hub = hub
        self._everyone = frozenset(range(hub.size))
        self._gathers = 0
        self._passages: dict[tuple[int, int], int] = {}

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:  # noqa: ARG002 - see Transport
        """See :class:`Transport`."""
        point = ("gather", self._gathers)
        brought = self._hub.meet(self.rank, {point: (self._everyone, checked_values(values).copy())})[point]
        self._gathers += 1
        return np.stack([brought[rank] for rank in range(self.size)])

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """See :class:`Transport`."""
        checked_exchange(self.rank, self.size, outgoing, incoming)
        parcels: dict[tuple[int, int], Bytes | None] = {(self.rank, to): array for to, array in outgoing.items()}
        parcels.update({(sender, self.rank): None for sender in incoming})
        points = {pair: (*pair, self._passages.get(pair, 0)) for pair in parcels}
        brought = self._hub.meet(
            self.rank, {points[pair]: (frozenset(pair), parcel) for pair, parcel in parcels.items()}
        )
        self._passages.update({pair: self._passages.get(pair, 0) + 1 for pair in parcels})
        return {sender: brought[points[sender, self.rank]][sender].copy() for sender in incoming}

    def leave(self) -> None:
        """See :class:`Transport`."""
        self._hub.end(News("left", (self.rank,)))

    def close(self) -> None:
        """See :class:`Transport`."""
        self.leave()


def checked_values(values: Integers) -> Integers:
    """The values of a gather; ValueError unless they are int64 in one dimension."""
    if values.dtype != np.int64 or values.ndim != 1:
        raise ValueError(f"a gather takes int64 values of one dimension, not {values.dtype} of shape {values.shape}")
    return values


def checked_exchange(rank: int, size: int, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> None:
    """Raise a ValueError unless an exchange names other ranks and sends bytes in one dimension."""
    for other in (*outgoing, *incoming):
        if not 0 <= other < size or other == rank:
            raise ValueError(f"rank {rank} of {size} cannot exchange anything with rank {other}")
    for array in outgoing.values():
        if array.dtype != np.uint8 or array.ndim != 1:
            raise ValueError(f"an exchange takes uint8 arrays of one dimension, not {array.dtype} {array.shape}")
