"""A process that forks, or was started in another way: copies of a transport neither disturb nor hide anything."""

import os
import signal
import threading
from multiprocessing.connection import Connection

import numpy as np
import pytest
from transport_ranks import Build, ranks_over_gloo

ONE = np.arange(1)


def fork_while_held(lock: threading.Lock) -> int:
    """Fork while another thread holds a lock: in the child nobody will ever release it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child:
        done.set()
        holder.join()
    return child


def fork_children(build: Build, line: Connection) -> int:
    """Each rank forks children that close their copy of the transport, or live on after it."""
    transport = build()
    transport.gather(ONE)
    for closes in (True, False):
        child = fork_while_held(transport._peers._lock)  # type: ignore[attr-defined]
        if child == 0:
            if closes:
                transport.close()
                os._exit(0)
            line.send(os.getpid())
            signal.pause()
        if closes:
            os.waitpid(child, 0)
    total = int(transport.gather(np.array([1])).sum())
    line.send("ready")
    if transport.rank == 1:
        line.recv()
    transport.gather(ONE)
    return total


def test_forked_children_neither_disturb_nor_hide_a_death() -> None:
    """A child has copies of all descriptors: a dead parent's connection must close all the same."""
    children: list[int] = []
    try:
        with ranks_over_gloo(2, fork_children) as ranks:
            for rank in range(2):
                said = [ranks.hear(rank), ranks.hear(rank)]  # a child may say its number after its parent is ready
                children += [one for one in said if one != "ready"]
                assert said.count("ready") == 1
            ranks.signal(1, signal.SIGKILL)
            outcome = ranks.outcome(0)
            assert (outcome.error, outcome.text[:11]) == ("PeerError", "rank 1 died")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def gather_once(build: Build, line: Connection) -> list[int]:
    transport = build()
    gathered = transport.gather(np.array([transport.rank]))[:, 0].tolist()
    transport.close()
    transport.close()
    return gathered


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_every_start_method_will_do(method: str) -> None:
    with ranks_over_gloo(2, gather_once, method=method) as ranks:
        assert ranks.values() == [[0, 1], [0, 1]]
