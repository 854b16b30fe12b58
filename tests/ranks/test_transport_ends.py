"""How a transport ends: at once, on every rank, with nothing left behind; and what its end does not disturb."""

import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ranks_support import line_to_test, start_ranks
from transport_ranks import ONE, all_meet, build, let_all_meet, ranks_over_gloo
from waiting import PATIENCE, descriptors, native_threads, threads_end

from odb_stream.config import World
from odb_stream.errors import PeerError
from odb_stream.ranks import gloo
from odb_stream.ranks.gloo import LOOK_SECONDS, Gloo
from odb_stream.ranks.transport import Left, Transport

WARM_UP, ROUNDS = 5, 50


def build_and_close(way: str) -> list[tuple[int, int, int]]:
    """Round after round; returns the descriptors, threads and Python threads after each."""
    counts = []
    for _ in range(WARM_UP + ROUNDS):
        transport = build()
        transport.gather(ONE)
        if way == "close while a peer waits" and transport.rank:
            with pytest.raises((PeerError, Left)):
                transport.gather(ONE)
        if way == "garbage":
            del transport
        else:
            transport.close()
        all_meet(line_to_test())
        threads_end()
        counts.append((descriptors(), native_threads(), threading.active_count()))
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("way", ["close while a peer waits", "garbage"])
def test_fifty_rounds_leave_nothing_behind(way: str) -> None:
    with start_ranks(build_and_close, 3, way) as ranks:
        for _ in range(WARM_UP + ROUNDS):
            let_all_meet(ranks)
        for counts in ranks.values():
            # Minima: the store's server closes its ends a moment after the clients. A leak is one a round, or more.
            opened, native, python = (np.array(column) for column in zip(*counts, strict=True))
            assert set(python) == {1}
            assert opened[-10:].min() <= opened[:WARM_UP].min() + 2
            assert native[-10:].min() <= native[:WARM_UP].min() + 1


def rebuild_subgroups() -> list[list[int]]:
    """Transports over two halves of the world, one after the other, with other groups in between."""
    rank = dist.get_rank()
    halves = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    mine = halves[rank % 2]
    seen = []
    for _ in range(4):
        transport = Gloo(World(dist.get_rank(mine), 2, mine), timeout=600)
        seen.append(transport.gather(np.array([rank]))[:, 0].tolist())
        other = 1 - transport.rank
        received = transport.exchange({other: np.full(3, rank, np.uint8)}, [other])
        assert received[other].tolist() == [seen[-1][other]] * 3
        transport.close()
    all_meet(line_to_test())
    return seen


def test_a_group_of_some_ranks_is_built_by_them_alone() -> None:
    """Also again and again: torch then gives the group the same name, and its store the old keys."""
    with start_ranks(rebuild_subgroups, 4) as ranks:
        let_all_meet(ranks)
        assert ranks.values() == [[[0, 2]] * 4, [[1, 3]] * 4] * 2


def wait_in_vain(transport: Transport) -> None:
    with pytest.raises(Left):
        transport.gather(ONE)


def end_first(transport: Gloo, line: Connection, leaver: int, way: str) -> None:
    """The leaver's process ends while its peers live on; later they find out."""
    if transport.rank != leaver:
        line.recv()
        with pytest.raises(PeerError, match="died" if way == "is in a gather" else "left"):
            transport.gather(ONE)
        transport.close()
        return
    line.send("ends")
    if way == "leaves and is gone":
        transport.leave()
        os._exit(0)
    if way != "lets go":
        threading.Thread(target=wait_in_vain, args=(transport,), daemon=True).start()
    if way == "closes":
        transport.close()


@pytest.mark.parametrize("way", ["closes", "is in a gather", "lets go", "leaves and is gone"])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_process_ends_while_its_peers_live(leaver: int, way: str) -> None:
    """Nothing in it waits for a peer: not its threads, not the destructors of its group."""
    with ranks_over_gloo(2, end_first, leaver, way) as ranks:
        assert ranks.hear(leaver) == "ends"
        if way != "leaves and is gone":
            assert ranks.outcome(leaver).error == ""
        assert ranks.exit_code(leaver) == 0
        ranks.tell(1 - leaver)
        assert ranks.outcome(1 - leaver).error == ""


def leave_in_an_operation(transport: Gloo, line: Connection) -> list[int]:
    """Rank 1 leaves when all have arrived; rank 0 is slow to post its part, and knows of it by then.

    Rank 1's call returns before the operation is through; its process stays until the test lets it end.
    """
    gloo.GRACE_SECONDS = PATIENCE  # in this process: a busy machine may hold the other one up for longer
    real = transport._group.all_gather

    def slow(values: Any) -> Any:
        if transport.rank == 1:
            transport.leave()
        else:
            assert transport._heartbeat.wait_for_event(PATIENCE) is not None
            threading.Event().wait(3 * LOOK_SECONDS)
        return real(values)

    transport._group.all_gather = slow
    try:
        gathered: list[int] = transport.gather(np.array([7 + transport.rank]))[:, 0].tolist()
    finally:
        if transport.rank == 1:
            line.recv()
    with pytest.raises(PeerError, match="rank 1 left"):
        transport.gather(ONE)
    return gathered


def test_what_all_have_joined_is_completed() -> None:
    with ranks_over_gloo(2, leave_in_an_operation) as ranks:
        assert ranks.outcome(0).value == [7, 8]
        ranks.tell(1)
        assert ranks.outcome(1).error == "Left"


def end_in_an_operation(transport: Gloo, line: Connection) -> None:
    """Rank 0 is in an operation that rank 1 never joins, as if rank 1 had been stopped just before it."""
    if transport.rank == 0:
        group = transport._peers.group
        transport._peers.jobs.submit(lambda: group.all_gather(ONE))
        transport.leave()
        transport.close()
        line.send("closed")
    else:
        line.recv()
        transport.close()


def test_a_process_ends_with_an_operation_that_a_peer_holds_up() -> None:
    with ranks_over_gloo(2, end_in_an_operation) as ranks:
        assert ranks.hear(0) == "closed"
        assert ranks.exit_code(0) == 0
        ranks.tell(1)
        assert ranks.outcome(1).error == ""
        assert ranks.exit_code(1) == 0


def end_quietly(transport: Gloo, line: Connection) -> None:
    """A proper end at different times."""
    if transport.rank == 0:
        transport.close()
    else:
        assert transport._heartbeat.wait_for_event(PATIENCE) is not None
    line.send("all know")
    line.recv()
    transport.close()


def test_a_proper_end_is_quiet() -> None:
    """Rank 0, which hosts the store, ends first; the others know that it left, and train for more than a beat."""
    with ranks_over_gloo(3, end_quietly, settings={"interval": 0.05}) as ranks:
        assert ranks.hear_all() == ["all know"] * 3
        for rank in range(3):
            ranks.tell(rank)
            assert ranks.outcome(rank).error == ""
            assert ranks.exit_code(rank) == 0
            threading.Event().wait(0.5)
        assert [ranks.output(rank) for rank in range(3)] == ["", "", ""]  # what native code prints included


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


def fork_children(transport: Gloo, line: Connection) -> int:
    """Each rank forks children that close their copy of the transport, or live on after it."""
    for closes in (True, False):
        child = fork_while_held(transport._peers._lock)
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
