"""Points in the group's store at which ranks meet before they post an operation: all go on, or none does.

An operation that was posted cannot be taken back, so none is posted before all who take part are there. Each point has
one decision, a key that is written once: ``GO`` by the last rank to arrive, or the news that calls the point off, by
any rank that hears of it first. Compare-and-set lets one of them win, and all ranks follow what was decided.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from odb_stream.ranks.peer_events import News

Pair = tuple[int, int]

GO = "go"
FOREVER = timedelta(days=3650)


class StoreClient(Protocol):
    """What is used of a ``torch.distributed.Store``. A client serves one call at a time and may block in it."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


class Rendezvous:
    """One rank's account of its points. ``meet_*`` block and belong to one thread; ``call_off`` is for another.

    The next gather's point counts as open before this rank gets there: whoever knows that it will never be complete
    can so wake the ranks that wait there already.
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
        self._gone: dict[int, News] = {}

    def meet_all(self) -> News | None:
        """Meet all ranks before a gather; None to go on, or why not."""
        point = _gather_point(self._gathers)
        refusal = self._meet([point], len(self._everyone))[point]
        if refusal is None:
            self._gathers += 1
            with self._lock:
                self._open = {_gather_point(self._gathers): self._everyone}
            # All ranks have been here, so all have read what was decided at the points before.
            for key in self._garbage:
                self._store.delete_key(key)
            self._garbage = _keys([point]) if self._rank == 0 else []
        return refusal

    def meet_pairs(self, pairs: Iterable[Pair]) -> Mapping[Pair, News | None]:
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
            if pair[0] == self._rank:
                self._garbage += _keys([point])
        return {pair: refusals[point] for pair, point in points.items()}

    def know(self, gone: Mapping[int, News]) -> None:
        """Take note of the ranks that are gone, in the order in which they were lost: for later points."""
        with self._lock:
            self._gone = dict(gone)

    def call_off(self, store: StoreClient, gone: Mapping[int, News]) -> None:
        """``know``, and decide against every open point that needs one of them, unless all have arrived there.

        Through the caller's own ``store``.
        """
        self.know(gone)
        with self._lock:
            refusals = {point: self._refusal(members) for point, members in self._open.items()}
        for point, news in refusals.items():
            if news is not None:
                store.compare_set(point, "", news.encode())

    def _refusal(self, members: Collection[int]) -> News | None:
        return next((news for rank, news in self._gone.items() if rank in members), None)

    def _meet(self, points: Sequence[str], needed: int) -> dict[str, News | None]:
        if not points:
            return {}
        with self._lock:
            refusals = {point: self._refusal(self._open[point]) for point in points}
        for point, news in refusals.items():
            if news is not None:
                self._store.compare_set(point, "", news.encode())
            elif self._store.add(_arrived(point), 1) == needed:
                self._store.compare_set(point, "", GO)
        self._store.wait(list(points), FOREVER)
        decisions = self._store.multi_get(list(points))
        return {
            point: None if decision == GO.encode() else News.decode(decision)
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
