"""The transport of a device mesh: several processes share one rank, such as those of a tensor-parallel group.

All processes of the mesh join every gather, so peers cannot drift apart unnoticed. An exchange goes to the process
that has the same place among the peers of the other rank.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from odb_stream.batching.cost import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.errors import PeerError
from odb_stream.ranks.transport import Transport
from odb_stream.sample import Bytes


class MeshTransport:
    """A Transport over ``whole``, whose process p belongs to the data-parallel rank ``places[p]``."""

    def __init__(self, whole: Transport, places: Sequence[int]) -> None:
        self._whole = whole
        self.rank = places[whole.rank]
        self.size = max(places) + 1
        self.processes = whole.size
        self._members = [[process for process, place in enumerate(places) if place == r] for r in range(self.size)]
        self._peer = self._members[self.rank].index(whole.rank)

    def gather(self, values: Integers, *, choose: RowChoice = equal_rows) -> Integers:
        """See :class:`odb_stream.ranks.transport.Transport`.

        Raises a PeerError on all processes where the processes of a rank brought rows of which none counts for all.
        """
        rows = self._whole.gather(values)
        return np.stack([self._row_of(rank, rows[members], choose) for rank, members in enumerate(self._members)])

    def _row_of(self, rank: int, rows: Integers, choose: RowChoice) -> Integers:
        """The one row of a rank, from the rows of its processes."""
        chosen = choose(rows)
        if chosen is not None:
            row: Integers = rows[chosen]
            return row
        members = self._members[rank]
        differing = int((rows != rows[0]).any(axis=1).argmax())
        raise PeerError(
            f"processes {members[0]} and {members[differing]} share data-parallel rank {rank} of {self.size}, "
            "but have arrived at different batches: give the peers of a rank the same data, settings, seed and state"
        )

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Collection[int]) -> dict[int, Bytes]:
        there = {rank: self._members[rank][self._peer] for rank in {*outgoing, *incoming}}
        received = self._whole.exchange(
            {there[rank]: array for rank, array in outgoing.items()}, [there[rank] for rank in incoming]
        )
        return {rank: received[there[rank]] for rank in incoming}

    def leave(self) -> None:
        self._whole.leave()

    def close(self) -> None:
        self._whole.close()
