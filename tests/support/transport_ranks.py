"""Runs one function on every rank with a transport of its own, as real processes over gloo.

A body gets its rank's transport, which has made one gather, and its line to the test. One that builds transports itself
is started by ``start_ranks``, and calls ``build``.
"""

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch.distributed as dist
from ranks_support import Ranks, line_to_test, start_ranks

from odb_stream.config import World
from odb_stream.ranks.gloo import Gloo

ONE = np.arange(1)


def build(timeout: float = 600.0, **settings: float) -> Gloo:
    """This rank's next transport. Ten minutes: a test must hear of a death by other means than the timeout."""
    return Gloo(World(dist.get_rank(), dist.get_world_size()), timeout=timeout, **settings)


def ranks_over_gloo(
    size: int, body: Callable[..., Any], *args: Any, settings: Mapping[str, float] | None = None, **start: Any
) -> Ranks:
    """Ranks as processes; ``settings`` are Gloo's, ``start`` is for ``start_ranks``."""
    return start_ranks(_over_gloo, size, settings or {}, body, args, **start)


def _over_gloo(settings: Mapping[str, float], body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    transport = build(**settings)
    transport.gather(ONE)
    return body(transport, line_to_test(), *args)


def all_meet(line: Connection) -> None:
    """On a rank: wait until all ranks are here. The test calls ``let_all_meet`` at the same time."""
    line.send("here")
    line.recv()


def let_all_meet(ranks: Ranks) -> None:
    assert set(ranks.hear_all()) == {"here"}
    ranks.tell_all()
