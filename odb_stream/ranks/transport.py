"""The contract by which ranks exchange what they must agree on, and its form for a run with one rank.

The forms for several are :class:`odb_stream.ranks.gloo.Gloo`, between processes, and
:class:`odb_stream.ranks.mesh.MeshTransport`, where several processes share one rank.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from odb_stream.batching.cost import Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.sample import Bytes


class Left(Exception):
    """This rank left. Outside the hierarchy of ``odb_stream.errors``: only this rank's own thread ever sees it."""


class Transport(Protocol):
    """One rank's connection to the others. All ranks make the same gathers; one thread of each makes its calls.

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

        A ``gather`` or ``exchange`` in which this rank waits raises Left, and so do later ones; one that all its ranks
        have joined completes first. Peers that wait for this rank, now or later, raise a PeerError.
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

    close = leave


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
