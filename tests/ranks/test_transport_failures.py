"""Ranks that die, stop, or lose the store or the network while others wait for them, as real processes."""

import json
import multiprocessing
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from ranks_support import Ranks, line_to_test, start_ranks
from transport_ranks import build, ranks_over_gloo
from waiting import PATIENCE

from odb_stream.config import World
from odb_stream.errors import ConfigError
from odb_stream.ranks import liveness
from odb_stream.ranks.gloo import Gloo

TIMEOUT, LONGER = 10.0, 13.0
"""A timeout that even a busy machine never reaches, and a time that is longer."""


def wait_for(transport: Gloo, line: Connection, victim: int) -> int:
    """The others wait for the victim, which waits for the test."""
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


def host_store(line: Connection) -> None:
    """A process that hosts a store and does nothing else, as a launcher does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line.send(store.port)
    threading.Event().wait()


@contextmanager
def launcher() -> Iterator[tuple[BaseProcess, tuple[str, int]]]:
    """The process and the address of its store."""
    ours, theirs = Pipe()
    host = multiprocessing.get_context("forkserver").Process(target=host_store, args=(theirs,))
    host.start()
    try:
        assert ours.poll(PATIENCE)
        yield host, ("127.0.0.1", ours.recv())
    finally:
        host.kill()


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_named_at_once(victim: int, launched: bool) -> None:
    """The timeout is 600 s: without the connections nobody would notice sooner. Rank 0 or a launcher has the store."""
    with launcher() as (_, address), ranks_over_gloo(3, wait_for, victim, store=address if launched else None) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        expect_all(ranks, others, "PeerError", f"rank {victim} died (its process is gone)")
        for rank in others:
            assert ranks.exit_code(rank) == 0


def test_a_killed_host_of_the_store_is_said_to_be_gone() -> None:
    with launcher() as (host, address), ranks_over_gloo(2, wait_for, 1, store=address) as ranks:
        ready(ranks)
        host.kill()
        expect_all(ranks, [0], "PeerError", "the store in which the ranks meet is gone")
        ranks.tell(1)
        expect_all(ranks, [1], "PeerError", "")


def move_much(transport: Gloo, line: Connection, victim: int, point: str) -> None:
    """Be in an operation nearly all the time."""
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
def test_a_rank_killed_in_an_operation_is_named(victim: int, point: str) -> None:
    """Some of its peers get an error of gloo, others would hang: all must say the same."""
    with ranks_over_gloo(3, move_much, victim, point) as ranks:
        ready(ranks)
        ranks.signal(victim, signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        expect_all(ranks, others, "PeerError", f"rank {victim} died (its process is gone)")
        for rank in others:
            assert ranks.exit_code(rank) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "victim", "stopped", "seconds", "settings"),
    [
        (2, 0, [0], 3.0, {"interval": 0.1}),  # thirty missed beats, but the timeout is 600 s
        (2, 1, [1], 3.0, {"interval": 0.1}),
        (3, 1, [0, 1, 2], LONGER, {"timeout": TIMEOUT}),  # a suspended job: one's own pause is no silence of the others
        (2, 1, [], LONGER, {"timeout": TIMEOUT}),  # a long evaluation on one rank: its heartbeat continues
    ],
)
def test_a_pause_is_not_a_failure(
    size: int, victim: int, stopped: list[int], seconds: float, settings: dict[str, float]
) -> None:
    """The others wait for the victim all the while."""
    with ranks_over_gloo(size, wait_for, victim, settings=settings) as ranks:
        ready(ranks)
        for rank in stopped:
            ranks.signal(rank, signal.SIGSTOP)
        threading.Event().wait(seconds)
        assert not any(line.poll() for line in ranks.lines)
        for rank in stopped:
            ranks.signal(rank, signal.SIGCONT)
        ranks.tell(victim)
        assert ranks.values() == [sum(range(size))] * size


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


def wait_without_connections(victim: int) -> None:
    """As ``wait_for``, where rank 0 cannot be connected to (the address is reserved for documentation)."""
    liveness.own_addresses = lambda: ["192.0.2.1"]  # type: ignore[attr-defined]
    wait_for(build(TIMEOUT), line_to_test(), victim)


@pytest.mark.slow
def test_without_connections_the_timeout_is_what_remains() -> None:
    with start_ranks(wait_without_connections, 2, 1) as ranks:
        ready(ranks)
        assert ranks.output(0) == ""
        assert "rank 1 found no way to connect to rank 0" in ranks.output(1)
        assert "192.0.2.1" in ranks.output(1)
        ranks.signal(1, signal.SIGKILL)
        expect_all(ranks, [0], "AlignmentTimeout", "rank 1 gave no sign of life for ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeout": 1.0}, r"World.size is 2"),  # torch.distributed is not initialized
        ({"timeout": 0.0}, "must be positive"),
        ({"timeout": 1.0, "interval": -1.0}, "must be positive"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Gloo(World(0, 2), **settings)


# A network that is cut, between two network namespaces that a pair of virtual interfaces joins.

SCRIPT = Path(__file__).parents[1] / "support" / "rank_in_namespace.py"
HERE, THERE = "10.213.0.1", "10.213.0.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)


def set_up(site: str, address: str) -> None:
    """A namespace has one interface, named after it."""
    for words in (("addr", "add", f"{address}/24", "dev", f"{site}v"), ("link", "set", f"{site}v", "up")):
        ip("-n", site, *words)
    ip("-n", site, "link", "set", "lo", "up")


def start_rank(site: str, rank: int) -> "subprocess.Popen[bytes]":
    # Gloo's own setting: the name of this host means nothing in a namespace.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"{site}v", "RES_OPTIONS": "timeout:1 attempts:1"}
    program = [sys.executable, SCRIPT, rank, 3, HERE, 29500, TIMEOUT]
    return subprocess.Popen(
        ["ip", "netns", "exec", site, *map(str, program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # so that everything unread stays in the pipe, where `select` sees it
        env=environment,
    )


@pytest.fixture
def sites() -> Iterator[tuple[str, str]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2 for network namespaces")
    mark = uuid.uuid4().hex[:6]
    here, there = f"odb{mark}a", f"odb{mark}b"
    with ExitStack() as undo:
        for site in (here, there):
            try:
                ip("netns", "add", site)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"cannot make a network namespace here: {error.stderr.decode().strip()}")
            undo.callback(ip, "netns", "del", site)
        peer = ("peer", "name", f"{there}v", "netns", there)
        ip("link", "add", f"{here}v", "netns", here, "type", "veth", *peer)
        set_up(here, HERE)
        set_up(there, THERE)
        yield here, there


@pytest.fixture
def ranks(sites: tuple[str, str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Ranks 0 and 1 on the side of the store, rank 2 on the other; all know each other by 10.x addresses."""
    processes = []
    with ExitStack() as ends:
        for rank, site in enumerate((sites[0], *sites)):
            processes.append(start_rank(site, rank))
            ends.callback(processes[-1].communicate)
            ends.callback(processes[-1].kill)
        for process in processes:
            assert read_line(process) == "ready"
        yield processes


def read_line(process: "subprocess.Popen[bytes]") -> str:
    """The next line that a rank prints; fails the test when there is none in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(PATIENCE), f"nothing within {PATIENCE} s"
    return process.stdout.readline().decode().strip()


@pytest.mark.slow
def test_a_cut_network_fails_on_both_sides_within_the_timeout(
    sites: tuple[str, str], ranks: list["subprocess.Popen[bytes]"]
) -> None:
    ip("-n", sites[1], "link", "set", f"{sites[1]}v", "down")
    assert ranks[2].stdin is not None
    ranks[2].stdin.write(b"\n")
    said = [json.loads(read_line(process)) for process in ranks]
    assert [kind for kind, _ in said] == ["AlignmentTimeout"] * 3
    for _, message in said[:2]:
        assert message.startswith("rank 2 gave no sign of life for ")
    assert said[2][1].startswith("ranks 0, 1 cannot be reached: ")
    for process in ranks:
        assert read_line(process) == "closed"
    for process in ranks:
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_rank_killed_on_another_host_is_named_at_once(ranks: list["subprocess.Popen[bytes]"]) -> None:
    """The hosts know each other by one address. If only the timeout were left, it would be an AlignmentTimeout."""
    ranks[2].kill()
    for process in ranks[:2]:
        kind, message = json.loads(read_line(process))
        assert (kind, message[:11]) == ("PeerError", "rank 2 died")
