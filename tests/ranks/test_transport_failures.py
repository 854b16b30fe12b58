"""Ranks that die, stop, or lose the store while others wait for them, as real processes."""

import logging
import multiprocessing
import signal
import threading
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
import torch.distributed as dist
from ranks_support import Ranks
from transport_ranks import Build, ranks_over_gloo
from waiting import PATIENCE

from odb_stream.config import World
from odb_stream.errors import ConfigError
from odb_stream.ranks import liveness
from odb_stream.ranks.gloo import Gloo

ONE = np.arange(1)
TIMEOUT, LONGER = 10.0, 13.0
"""A timeout that no busy machine reaches by itself, and a time that is longer."""


def wait_for(build: Build, line: Connection, victim: int) -> int:
    """All make one gather, then the others wait for the victim, which waits for the test."""
    transport = build()
    transport.gather(ONE)
    line.send("ready")
    if transport.rank == victim:
        line.recv()
    total = int(transport.gather(np.array([transport.rank])).sum())
    transport.close()
    return total


def ready(ranks: Ranks) -> None:
    assert set(ranks.hear_all()) == {"ready"}


def expect_all(ranks: Ranks, others: list[int], kind: str, words: str) -> None:
    for rank in others:
        outcome = ranks.outcome(rank)
        assert outcome.error == kind
        assert outcome.text.startswith(words), outcome.text


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_named_at_once(victim: int) -> None:
    """With a timeout of 600 s; without the connections nobody would notice before that. Rank 0 hosts the store."""
    with ranks_over_gloo(3, wait_for, victim) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        expect_all(ranks, others, "PeerError", f"rank {victim} died (its process is gone)")
        for rank in others:
            assert ranks.exit_code(rank) == 0


def host_store(line: Connection) -> None:
    """A process that hosts a store and does nothing else, as a launcher does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line.send(store.port)
    threading.Event().wait()


def start_host() -> tuple[BaseProcess, tuple[str, int]]:
    ours, theirs = Pipe()
    host = multiprocessing.get_context("forkserver").Process(target=host_store, args=(theirs,))
    host.start()
    assert ours.poll(PATIENCE)
    return host, ("127.0.0.1", ours.recv())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_when_a_launcher_hosts_the_store(victim: int) -> None:
    host, address = start_host()
    try:
        with ranks_over_gloo(2, wait_for, victim, store=address) as ranks:
            ready(ranks)
            ranks.signal(victim, signal.SIGKILL)
            expect_all(ranks, [1 - victim], "PeerError", f"rank {victim} died (its process is gone)")
    finally:
        host.kill()


def test_a_killed_host_of_the_store_is_said_to_be_gone() -> None:
    host, address = start_host()
    with ranks_over_gloo(2, wait_for, 1, store=address) as ranks:
        ready(ranks)
        host.kill()
        expect_all(ranks, [0], "PeerError", "the store in which the ranks meet is gone")
        ranks.tell(1)
        expect_all(ranks, [1], "PeerError", "")


def move_much(build: Build, line: Connection, victim: int, point: str) -> None:
    """Be inside of an operation nearly all of the time."""
    transport = build()
    other = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    array = np.zeros(20_000_000, np.uint8)
    for number in range(1_000_000):
        if point == "gather":
            transport.gather(array.view(np.int64))
        else:
            transport.exchange({other[0]: array}, [other[1]])
        if number == 3:
            line.send("ready")


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "point"), [(0, "exchange"), (2, "gather"), (2, "exchange")])
def test_a_rank_killed_inside_of_an_operation_is_named(victim: int, point: str) -> None:
    """Some of its peers get an error of gloo, the others would hang: all must say the same."""
    with ranks_over_gloo(3, move_much, victim, point) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        expect_all(ranks, others, "PeerError", f"rank {victim} died (its process is gone)")
        for rank in others:
            assert ranks.exit_code(rank) is not None


def pause(seconds: float) -> None:
    """Let time pass for stopped processes; nothing waits for the end of this."""
    threading.Event().wait(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_waited_for(victim: int) -> None:
    """Three seconds without a sign of life, thirty missed beats, but the timeout is 600 s: no failure."""
    with ranks_over_gloo(2, wait_for, victim, settings={"interval": 0.1}) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGSTOP)
        pause(3)
        assert not ranks.lines[1 - victim].poll()
        ranks.signal(victim, signal.SIGCONT)
        ranks.tell(victim)
        assert ranks.values() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_stopped_for_longer_than_the_timeout_is_named(victim: int) -> None:
    with ranks_over_gloo(3, wait_for, victim, settings={"timeout": TIMEOUT}) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGSTOP)
        others = [rank for rank in range(3) if rank != victim]
        if victim == 0:  # it hosts the store as well, so nobody answers
            expect_all(ranks, others, "AlignmentTimeout", "ranks ")
        else:
            expect_all(ranks, others, "AlignmentTimeout", f"rank {victim} gave no sign of life for ")
        ranks.signal(victim, signal.SIGCONT)
        ranks.tell(victim)
        assert ranks.outcome(victim).error in ("AlignmentTimeout", "PeerError")


@pytest.mark.slow
def test_ranks_that_are_all_stopped_do_not_accuse_each_other() -> None:
    """As when a whole job is suspended: for each of them its own pause is no silence of the others."""
    with ranks_over_gloo(3, wait_for, 1, settings={"timeout": TIMEOUT}) as ranks:
        ready(ranks)
        for rank in range(3):
            ranks.signal(rank, signal.SIGSTOP)
        pause(LONGER)
        for rank in range(3):
            ranks.signal(rank, signal.SIGCONT)
        ranks.tell(1)
        assert ranks.values() == [3, 3, 3]


@pytest.mark.slow
def test_a_rank_that_does_other_things_for_longer_than_the_timeout_is_no_failure() -> None:
    """A long evaluation on one rank: its heartbeat goes on."""
    with ranks_over_gloo(2, wait_for, 1, settings={"timeout": TIMEOUT}) as ranks:
        ready(ranks)
        pause(LONGER)
        assert not ranks.lines[0].poll()
        ranks.tell(1)
        assert ranks.values() == [1, 1]


class Records(logging.Handler):
    """Keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def wait_without_connections(build: Build, line: Connection, victim: int) -> None:
    """As ``wait_for``, where rank 0 cannot be connected to (the address is reserved for documentation)."""
    liveness.own_addresses = lambda: ["192.0.2.1"]  # type: ignore[attr-defined]
    records = Records()
    logging.getLogger("odb_stream").addHandler(records)
    transport = build()
    line.send(records.messages)
    wait_for(lambda: transport, line, victim)


@pytest.mark.slow
def test_without_connections_the_timeout_is_what_remains() -> None:
    with ranks_over_gloo(2, wait_without_connections, 1, settings={"timeout": TIMEOUT}) as ranks:
        assert ranks.hear(0) == []
        (warning,) = ranks.hear(1)
        assert "rank 1 found no way to connect to rank 0" in warning
        assert "192.0.2.1" in warning
        ready(ranks)
        ranks.signal(1, signal.SIGKILL)
        expect_all(ranks, [0], "AlignmentTimeout", "rank 1 gave no sign of life for ")


def test_torch_distributed_must_be_initialized() -> None:
    with pytest.raises(ConfigError, match=r"World.size is 2, but torch.distributed is not initialized"):
        Gloo(World(0, 2), timeout=1.0)


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"timeout": 1.0, "interval": -1.0}])
def test_times_must_be_positive(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        Gloo(World(0, 2), **settings)


def build_wrongly(build: Build, line: Connection) -> str:
    with pytest.raises(ConfigError) as caught:
        Gloo(World(dist.get_rank(), 3), timeout=1.0)
    return str(caught.value)


def test_the_world_must_fit_the_process_group() -> None:
    with ranks_over_gloo(2, build_wrongly) as ranks:
        assert ranks.values() == [
            f"World says rank {rank} of 3, but its process group says rank {rank} of 2" for rank in range(2)
        ]
