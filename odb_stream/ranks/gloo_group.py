"""A separate gloo group over the ranks of a World: built by all of them, with two blocking operations."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

from odb_stream.batching.cost import Integers
from odb_stream.config import World
from odb_stream.errors import ConfigError
from odb_stream.ranks.rendezvous import StoreClient
from odb_stream.sample import Bytes

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.005
"""Seconds between two looks at an operation: short at first, since most take less than a millisecond."""

LENGTHS, ARRAYS = 1, 2  # tags
OWN_SECONDS = 60.0
"""Gloo's own limit is this much longer than the timeout, so that our error, which names a rank, comes first."""


class GlooGroup:
    """The group, and its own part of the store.

    It is made without ``torch.distributed.new_group``, which either needs every rank of the job or, for a subset,
    gives the same name and the same part of the store to one group after another.
    """

    def __init__(self, world: World, timeout: float) -> None:
        self.size = world.size
        self._store: Any = _store_of(world)
        limit = timedelta(seconds=timeout + OWN_SECONDS)
        # The first ``size`` builders make the first group, the next ``size`` the second; no one has to number them.
        builders = self._store.add("odb_stream/builders", 1)
        self._place = f"odb_stream/{(builders - 1) // world.size}"
        self._group: Any = dist.ProcessGroupGloo(self._client("gloo"), world.rank, world.size, limit)

    def client(self) -> StoreClient:
        """A new connection to the group's part of the store, for one thread."""
        return cast(StoreClient, self._client("ranks"))

    def all_gather(self, values: Integers) -> Integers:
        """Shape (n,) on every rank to (size, n). Raises RuntimeError when gloo does."""
        if not len(values):
            return np.empty((self.size, 0), np.int64)
        rows = torch.empty((self.size, len(values)), dtype=torch.int64)
        work = self._group.allgather([list(rows.unbind(0))], [torch.from_numpy(values.copy())])
        # Not `work.wait()`: when a peer holds the operation up, this thread is left behind, and returning from native
        # code while the interpreter ends would abort the process.
        pause = FIRST_PAUSE
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        work.wait()  # raises what went wrong
        return cast(Integers, rows.numpy())

    def send_and_receive(self, outgoing: Mapping[int, Bytes], incoming: Sequence[int]) -> dict[int, Bytes]:
        """Point to point, between ranks that call it for each other. Raises RuntimeError when gloo does."""
        # All sends and receipts of lengths are posted before anything is waited for, so no circle of waiting can close.
        under_way = []
        lengths, arrays = {}, {}
        for other, array in outgoing.items():
            length = torch.tensor([len(array)], dtype=torch.int64)
            under_way.append(self._group.send([length], other, LENGTHS))
            if len(array):
                # A copy, because the sender may reuse its array while gloo still reads it.
                under_way.append(self._group.send([torch.from_numpy(array.copy())], other, ARRAYS))
        for other in incoming:
            length = torch.empty(1, dtype=torch.int64)
            lengths[other] = length, self._group.recv([length], other, LENGTHS)
        for other, (length, work) in lengths.items():
            work.wait()
            arrays[other] = torch.empty(int(length), dtype=torch.uint8)
            if len(arrays[other]):
                under_way.append(self._group.recv([arrays[other]], other, ARRAYS))
        # Unlike a gather: gloo marks these as completed only when they are waited for.
        for work in under_way:
            work.wait()
        return {other: cast(Bytes, array.numpy()) for other, array in arrays.items()}

    def let_go(self) -> None:
        """Free the group; blocks while an operation is under way."""
        del self._group

    def _client(self, part: str) -> Any:
        # Public and documented, but missing from the module's list of exports.
        return dist.PrefixStore(f"{self._place}/{part}", self._store.clone())  # type: ignore[attr-defined]


def _store_of(world: World) -> Any:
    """The store of the World's process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"World.size is {world.size}, but torch.distributed is not initialized: call init_process_group before "
            "the Loader is built"
        )
    rank, size = dist.get_rank(world.group), dist.get_world_size(world.group)
    if (rank, size) != (world.rank, world.size):
        raise ConfigError(
            f"World says rank {world.rank} of {world.size}, but its process group says rank {rank} of {size}: "
            "pass the rank and size of that group, or no group"
        )
    group: Any = world.group or dist.group.WORLD
    if not hasattr(group, "get_group_store"):
        raise ConfigError(
            f"torch {torch.__version__} does not give a group's store: several ranks need torch 2.9 or later; a single "
            "rank runs with this version"
        )
    return group.get_group_store()
