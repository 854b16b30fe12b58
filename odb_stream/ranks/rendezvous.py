"""Points in the group's store where ranks meet before they post an operation: either all post it or none does.

An operation that was posted cannot be taken back, so none is posted before all its ranks are there. Each point has one
decision, a key that is written once: ``GO`` by the last rank to arrive, or the event that calls the point off, by
whichever rank learns of it first. Compare-and-set lets one of them win, and all ranks follow the decision.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from odb_stream.ranks.peer_events import PeerEvent

Pair = tuple[int, int]

GO = "go"
FOREVER = timedelta(days=3650)
"""A point is always decided in the end, by an arrival or by an event, so the wait for it needs no limit of its own."""


class StoreClient(Protocol):
    """The calls used of a ``torch.distributed.Store``. A client serves one call at a time and may block in it."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


class Rendezvous:
    """One rank's view of its points. ``meet_*`` block and belong to one thread; another thread calls ``call_off``.

    The next gather's point counts as open before this rank arrives there. So a rank that knows that the point can
    never be complete wakes the ranks that already wait at it.
    """

    def __init__(self, store: StoreClient, *, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._everyone = range(size)
        self._gathers = 0
        self._passages: dict[Pair, int] = {}
        self._garbage: list[str] = []
        self._lock = threading.Lock()
        self._open: dict[str, Collection[int]] = {_gather_point(0): self._everyone}
        self._gone: dict[int, PeerEvent] = {}

    def meet_all(self) -> PeerEvent | None:
        """Meet all ranks before a gather; None if it takes place, else the event that prevents it."""
        point = _gather_point(self._gathers)
        refusal = self._meet([point], len(self._everyone))[point]
        if refusal is None:
            self._gathers += 1
            with self._lock:
                self._open = {_gather_point(self._gathers): self._everyone}
            # All ranks have arrived here, so all have read the decisions of earlier points.
            for key in self._garbage:
                self._store.delete_key(key)
            self._garbage = _keys([point]) if self._rank == 0 else []
        return refusal

    def meet_pairs(self, pairs: Iterable[Pair]) -> Mapping[Pair, PeerEvent | None]:
        """Meet the other rank of each (sender, receiver) pair before an exchange; for each, as ``meet_all``."""
        points = {pair: _pair_point(*pair, self._passages.get(pair, 0)) for pair in pairs}
        with self._lock:
            self._open.update({point: pair for pair, point in points.items()})
        refusals = self._meet(list(points.values()), 2)
        with self._lock:
            for point in points.values():
                del self._open[point]
        for pair, point in points.items():
            self._passages[pair] = self._passages.get(pair, 0) + 1
            # Kept until the next gather: the receiver may not have read the decision yet.
            if pair[0] == self._rank:
                self._garbage += _keys([point])
        return {pair: refusals[point] for pair, point in points.items()}

    def note_gone(self, gone: Mapping[int, PeerEvent]) -> None:
        """Remember, for later points, the ranks that are gone, in the order in which they were lost."""
        with self._lock:
            self._gone = dict(gone)

    def call_off(self, store: StoreClient, gone: Mapping[int, PeerEvent]) -> None:
        """``note_gone``, and decide against every open point that needs one of them, unless all have arrived there.

        Through the caller's own ``store``, because this rank's thread may be blocked in the other client.
        """
        self.note_gone(gone)
        with self._lock:
            refusals = {point: self._refusal(members) for point, members in self._open.items()}
        for point, event in refusals.items():
            if event is not None:
                store.compare_set(point, "", event.encode())

    def _refusal(self, members: Collection[int]) -> PeerEvent | None:
        return next((event for rank, event in self._gone.items() if rank in members), None)

    def _meet(self, points: Sequence[str], needed: int) -> dict[str, PeerEvent | None]:
        if not points:
            return {}
        with self._lock:
            refusals = {point: self._refusal(self._open[point]) for point in points}
        for point, event in refusals.items():
            if event is not None:
                self._store.compare_set(point, "", event.encode())
            elif self._store.add(_arrived(point), 1) == needed:
                self._store.compare_set(point, "", GO)
        self._store.wait(list(points), FOREVER)
        # Read back even what this rank wrote itself: another rank may have decided first.
        decisions = self._store.multi_get(list(points))
        return {
            point: None if decision == GO.encode() else PeerEvent.decode(decision)
            for point, decision in zip(points, decisions, strict=True)
        }


def _gather_point(number: int) -> str:
    return f"gather/{number}"


def _pair_point(sender: int, receiver: int, passage: int) -> str:
    return f"pair/{sender}/{receiver}/{passage}"


def _arrived(point: str) -> str:
    return f"{point}/arrived"


def _keys(points: Sequence[str]) -> list[str]:
    return [key for point in points for key in (point, _arrived(point))]
