"""Runs one function on every rank with transports of its own, as real processes over gloo.

A body gets ``build``, which gives this rank's next transport, and its line to the test.
"""

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from ranks_support import Ranks, line_to_test, start_ranks

from odb_stream.config import World
from odb_stream.ranks.gloo import Gloo
from odb_stream.ranks.transport import Transport

Build = Callable[[], Transport]
Body = Callable[..., Any]


def ranks_over_gloo(
    size: int, body: Body, *args: Any, settings: Mapping[str, Any] | None = None, **start: Any
) -> Ranks:
    """Ranks as processes; ``settings`` are Gloo's, ``start`` is for ``start_ranks``."""
    # Ten minutes: a test must hear of a death by other means than the timeout.
    return start_ranks(_over_gloo, size, {"timeout": 600.0, **(settings or {})}, body, args, **start)


def _over_gloo(settings: Mapping[str, Any], body: Body, args: tuple[Any, ...]) -> Any:
    world = World(dist.get_rank(), dist.get_world_size())
    return body(lambda: Gloo(world, **settings), line_to_test(), *args)


def all_meet(line: Connection) -> None:
    """On a rank: wait until all ranks are here. The test calls ``let_all_meet`` at the same time."""
    line.send("here")
    line.recv()


def let_all_meet(ranks: Ranks) -> None:
    assert set(ranks.hear_all()) == {"here"}
    ranks.tell_all()
