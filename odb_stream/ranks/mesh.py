"""Mirrored: the transport of ranks that several processes share, such as those of a tensor-parallel group.

All processes of the mesh come to every gather, so peers cannot drift apart unnoticed; exchanges go to the process that
has the same place among the peers of the other rank.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from odb_stream.batching.events import Stops
from odb_stream.errors import PeerError
from odb_stream.ranks.transport import Bytes, Integers, Transport

STOPPING = 2
"""Status words from here on tell of a failure or of a rank that leaves (see ``odb_stream.batching.messages``)."""


class Mirrored:
    """A transport over ``whole``, whose process p belongs to the data-parallel rank ``places[p]``."""

    def __init__(self, whole: Transport, places: Sequence[int]) -> None:
        self._whole = whole
        self.rank = places[whole.rank]
        self.size = max(places) + 1
        self.processes = whole.size
        self._members = [[process for process, place in enumerate(places) if place == r] for r in range(self.size)]
        self._peer = self._members[self.rank].index(whole.rank)

    def gather(self, values: Integers, *, stops: Stops = "no") -> Integers:
        """See :class:`odb_stream.ranks.transport.Transport`.

        Raises a PeerError on all processes where peers have brought different values.
        """
        rows = self._whole.gather(values)
        return np.stack([self._agreed(rows, rank, stops) for rank in range(self.size)])

    def _agreed(self, rows: Integers, rank: int, stops: Stops) -> Any:
        members = self._members[rank]
        own: Integers = rows[members]
        differing = np.flatnonzero((own != own[0]).any(axis=1))
        if not len(differing):
            return rows[members[0]]
        if stops == "cause":
            return rows[members[int(np.argmax(own.any(axis=1)))]]
        stopped = members[int(np.argmax(own[:, 0]))]
        if stops == "status" and rows[stopped, 0] >= STOPPING:
            return rows[stopped]
        raise PeerError(
            f"processes {members[0]} and {members[int(differing[0])]} share data-parallel rank {rank} of {self.size}, "
            "but have come to different batches: give the peers of a rank the same data, settings, seed and state"
        )

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        there = {rank: self._members[rank][self._peer] for rank in {*outgoing, *incoming}}
        received = self._whole.exchange(
            {there[rank]: array for rank, array in outgoing.items()}, [there[rank] for rank in incoming]
        )
        return {rank: received[there[rank]] for rank in incoming}

    def leave(self) -> None:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        self._whole.leave()

    def close(self) -> None:
        """See :class:`odb_stream.ranks.transport.Transport`."""
        self._whole.close()
