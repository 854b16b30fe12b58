"""A transport between ranks that are threads of one process, which can let one of them die."""

import threading
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odb_stream.batching.groups import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.ranks.peer_events import PeerEvent
from odb_stream.ranks.transport import Left, checked_exchange, checked_values
from odb_stream.sample import Bytes


@dataclass
class _Meeting:
    """A point that ``members`` must all reach; ``refusal`` is set when that can no longer be."""

    members: frozenset[int]
    brought: dict[int, Any] = field(default_factory=dict)
    refusal: PeerEvent | None = None
    read: int = 0

    @property
    def decided(self) -> bool:
        return self.refusal is not None or len(self.brought) == len(self.members)

    def call_off(self, gone: Mapping[int, PeerEvent]) -> None:
        """Refuse for the first of those who are gone, if a member is among them."""
        if not self.decided:
            self.refusal = next((event for rank, event in gone.items() if rank in self.members), None)


class InMemoryHub:
    """Joins ``size`` ranks that are threads of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._meetings: dict[Hashable, _Meeting] = {}
        self._gone: dict[int, PeerEvent] = {}

    def transport(self, rank: int) -> "InMemory":
        """The end of one rank."""
        return InMemory(self, rank)

    def fail(self, rank: int) -> None:
        """Let a rank die: its own calls end, and its peers raise a PeerError that names it."""
        self.end(PeerEvent("died", (rank,)))

    def end(self, event: PeerEvent) -> None:
        """Call off what is undecided and needs the ranks of the event."""
        with self._changed:
            self._gone |= {rank: event for rank in event.ranks if rank not in self._gone}
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

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        point = ("gather", self._gathers)
        brought = self._hub.meet(self.rank, {point: (self._everyone, checked_values(values).copy())})[point]
        self._gathers += 1
        return np.stack([brought[rank] for rank in range(self.size)])

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """See :class:`odb_stream.ranks.transport.Transport`."""
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
        """See :class:`odb_stream.ranks.transport.Transport`."""
        self._hub.end(PeerEvent("left", (self.rank,)))

    def close(self) -> None:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        self.leave()
