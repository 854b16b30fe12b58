"""What a transport promises while ranks live: whole data, one decision for all, a name when a rank leaves.

At the end the transports that need no other process: of one rank, and of ranks that several processes share.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ranks_support import start_ranks
from transport_ranks import ONE, build, ranks_over_gloo
from waiting import threads_end

from odb_stream.batching.messages import CLOSING, EXHAUSTED, FAILED, cause_row, equal_rows, stopping_row
from odb_stream.errors import PeerError
from odb_stream.ranks.gloo import Gloo
from odb_stream.ranks.mesh import MeshTransport
from odb_stream.ranks.transport import Left, Local, Transport, checked_exchange

Round = tuple[int | None, Mapping[tuple[int, int], int]]
"""How many integers each rank gathers (None: no gather), and how many bytes each (sender, receiver) exchanges."""


def row(rank: int, number: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng([rank, number]).integers(-(2**62), 2**62, length)


def parcel(sender: int, receiver: int, number: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng([sender, receiver, number]).integers(0, 256, length, dtype=np.uint8)


def run_rounds(transport: Gloo, line: Connection, rounds: Sequence[Round]) -> list[int]:
    """Run them on one rank, checking everything it receives; how many keys the store holds after each gather."""
    me, counts = transport.rank, []
    store: Any = dist.group.WORLD.get_group_store()
    for number, (length, parcels) in enumerate(rounds):
        if length is not None:
            gathered = transport.gather(row(me, number, length))
            expected = np.array([row(rank, number, length) for rank in range(transport.size)])
            assert gathered.dtype == np.int64
            np.testing.assert_array_equal(gathered, expected.reshape(transport.size, length))
            counts.append(store.num_keys())
        outgoing = {to: parcel(me, to, number, size) for (sender, to), size in parcels.items() if sender == me}
        incoming = {sender: size for (sender, to), size in parcels.items() if to == me}
        if outgoing or incoming:
            received = transport.exchange(outgoing, incoming)
            assert received.keys() == incoming.keys()
            for sender, size in incoming.items():
                assert received[sender].dtype == np.uint8
                np.testing.assert_array_equal(received[sender], parcel(sender, me, number, size))
    transport.gather(ONE)
    transport.close()
    return counts


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_processes_get_what_was_sent(size: int) -> None:
    """Only those who take part call ``exchange``, also several times between two gathers. The store does not grow."""
    generator = random.Random(size)
    pairs = [(sender, to) for sender in range(size) for to in range(size) if sender != to]
    rounds = [
        (
            generator.choice([None, 0, 1, 7, 300]),
            {pair: generator.choice([0, 1, 1000, 70_000]) for pair in pairs if generator.random() < 0.5},
        )
        for _ in range(50)
    ]
    with ranks_over_gloo(size, run_rounds, rounds) as ranks:
        for counts in ranks.values():
            # Two keys a pair stay until the next gather, and exchanges without one between them add up.
            assert max(counts[-10:]) <= max(counts[:10]) + 8 + 6 * len(pairs)


def test_uneven_arrays_pass_each_other() -> None:
    """Each of three ranks sends 5 MB to one and nothing, or a little, to the other, all at the same time."""
    parcels = {(rank, (rank + 1) % 3): 5_000_000 for rank in range(3)}
    parcels |= {(rank, (rank + 2) % 3): rank for rank in range(3)}
    with ranks_over_gloo(3, run_rounds, [(1, parcels), (1, parcels)]) as ranks:
        ranks.values()


def exchange_after_one_has_left(transport: Gloo, line: Connection) -> list[int]:
    if transport.rank == 2:
        transport.close()
        line.send("closed")
        return []
    line.recv()
    other = 1 - transport.rank
    got = transport.exchange({other: np.full(4, transport.rank, np.uint8)}, [other])[other].tolist()
    with pytest.raises(PeerError, match="rank 2 left"):
        transport.exchange({2: np.zeros(1, np.uint8)}, [])
    with pytest.raises(PeerError, match="rank 2 left"):
        transport.gather(ONE)
    return got


def test_an_exchange_needs_only_those_who_take_part() -> None:
    with ranks_over_gloo(3, exchange_after_one_has_left) as ranks:
        assert ranks.hear(2) == "closed"
        for rank in (0, 1):
            ranks.tell(rank)
        assert ranks.values() == [[1] * 4, [0] * 4, []]


def wait_or_leave(transport: Gloo, line: Connection, leaver: int, point: str) -> int:
    """All make one gather; then the leaver leaves when told to, and the others wait for it.

    No operation is posted in vain: one that is would keep its thread.
    """
    if transport.rank == leaver:
        line.recv()
        transport.leave()
        for _ in range(2):
            with pytest.raises(Left):
                transport.gather(ONE)
        with pytest.raises(Left):
            transport.exchange({}, [])
        transport.close()
        return 0
    line.send("waits")
    try:
        if point == "gather":
            transport.gather(ONE)
        else:
            transport.exchange({leaver: np.zeros(3, np.uint8)}, [leaver])
        return 0
    finally:
        transport.close()
        threads_end()


@pytest.mark.parametrize(("leaver", "point"), [(0, "gather"), (1, "gather"), (2, "gather"), (1, "exchange")])
def test_peers_that_wait_learn_who_left(leaver: int, point: str) -> None:
    with ranks_over_gloo(3, wait_or_leave, leaver, point) as ranks:
        others = [rank for rank in range(3) if rank != leaver]
        for rank in others:
            assert ranks.hear(rank) == "waits"
        ranks.tell(leaver)
        for rank in others:
            outcome = ranks.outcome(rank)
            assert outcome.error == "PeerError"
            assert outcome.text.startswith(f"rank {leaver} left ")
        assert ranks.outcome(leaver).error == ""


def until_it_waits(transport: Gloo) -> None:
    """Return once a call of this rank is under way in another thread."""
    while not transport._heartbeat.is_waiting:
        threading.Event().wait(0.001)


def leave_while_waiting(transport: Gloo, line: Connection, point: str) -> None:
    """Wait for ranks that never arrive, until another thread lets this rank leave."""
    if transport.rank == 0:
        line.recv()
    else:
        leaver = threading.Thread(target=lambda: (until_it_waits(transport), transport.leave()))
        leaver.start()
        try:
            if point == "gather":
                transport.gather(ONE)
            else:
                transport.exchange({0: np.zeros(3, np.uint8)}, [0])
        finally:
            leaver.join()
            transport.close()
            threads_end()
    transport.gather(ONE)


@pytest.mark.parametrize("point", ["gather", "exchange"])
def test_a_rank_that_waits_can_leave(point: str) -> None:
    with ranks_over_gloo(2, leave_while_waiting, point) as ranks:
        assert ranks.outcome(1).error == "Left"
        ranks.tell(0)
        outcome = ranks.outcome(0)
        assert (outcome.error, outcome.text[:11]) == ("PeerError", "rank 1 left")


ROUNDS = 30


def gather_for_ever(transport: Transport, counts: list[int]) -> None:
    """Count in the last place what came through."""
    while True:
        transport.gather(np.full(2000, counts[-1]))
        counts[-1] += 1


def leave_at_some_moment(size: int) -> list[int]:
    """In each round one rank leaves while all of them gather; returns how many gathers came through in each."""
    counts = []
    for number in range(ROUNDS):
        transport = build()
        leaver = number % size == transport.rank
        # So that the moments at which it leaves are spread over a gather's few milliseconds.
        alarm = threading.Timer(0.003 + 0.0005 * (number // size), transport.leave)
        counts.append(0)
        transport.gather(ONE)
        if leaver:
            alarm.start()
        with pytest.raises(Left if leaver else PeerError) as caught:
            gather_for_ever(transport, counts)
        assert leaver or f"rank {number % size} left" in str(caught.value), caught.value
        transport.close()
        if leaver:
            alarm.join()
    return counts


@pytest.mark.slow
def test_all_ranks_complete_a_gather_or_none() -> None:
    """The heart of the matter: whenever a rank leaves, all its peers stop at the same gather, and nobody hangs."""
    with start_ranks(leave_at_some_moment, 3, 3) as ranks:
        counts = ranks.values(within=300)
    for number, row in enumerate(zip(*counts, strict=True)):
        first, second = (count for rank, count in enumerate(row) if rank != number % 3)
        assert first == second
        # The one that left completes a gather that all had joined, and leaves after it.
        assert first - 1 <= row[number % 3] <= first


def test_a_single_rank_gathers_its_own_values() -> None:
    transport: Transport = Local()
    values = np.array([3, 1, 2])
    gathered = transport.gather(values)
    assert gathered.tolist() == [[3, 1, 2]]
    values[0] = 7
    assert gathered[0, 0] == 3
    assert transport.exchange({}, []) == {}
    transport.leave()
    for call in (lambda: transport.gather(values), lambda: transport.exchange({}, [])):
        with pytest.raises(Left):
            call()
    transport.close()


def test_what_makes_no_sense_is_refused() -> None:
    for values in (np.arange(3, dtype=np.int32), np.zeros((1, 1), np.int64)):
        with pytest.raises(ValueError, match=f"{values.dtype} of shape"):
            Local().gather(values)
    for other in (0, 2, -1):
        with pytest.raises(ValueError, match=f"rank {other}"):
            Local().exchange({}, [other])
    with pytest.raises(ValueError, match="int64"):
        checked_exchange(0, 2, {1: np.zeros(2, np.int64)}, [])  # type: ignore[dict-item]


class FourProcesses:
    """The transport of process 2 of four; the others have brought ``rows``."""

    rank, size = 2, 4

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = np.array(rows)

    def gather(self, values: Any) -> Any:
        assert values.tolist() == self.rows[self.rank].tolist()
        return self.rows

    def exchange(self, outgoing: Any, incoming: Any) -> Any:
        self.sent_to = list(outgoing)
        return {process: np.array([process], np.uint8) for process in incoming}


def gathered(rows: list[list[int]], choose: Callable[..., int | None]) -> list[list[int]]:
    """What two ranks gather if processes 0 and 1 share rank 0, processes 2 and 3 rank 1."""
    table = MeshTransport(FourProcesses(rows), (0, 0, 1, 1)).gather(np.array(rows[2]), choose=choose)  # type: ignore[arg-type]
    found: list[list[int]] = table.tolist()
    return found


@pytest.mark.parametrize("choose", [equal_rows, stopping_row, cause_row])
def test_processes_that_agree_are_one_rank(choose: Callable[..., int | None]) -> None:
    assert gathered([[1, 5], [1, 5], [0, 7], [0, 7]], choose) == [[1, 5], [0, 7]]


@pytest.mark.parametrize("choose", [equal_rows, stopping_row])
def test_processes_of_a_rank_that_disagree_are_named(choose: Callable[..., int | None]) -> None:
    """Fails when a status word that reports no stop excuses a difference."""
    with pytest.raises(PeerError, match="processes 2 and 3 share data-parallel rank 1 of 2"):
        gathered([[0, 5], [0, 5], [0, 7], [EXHAUSTED, 7]], choose)


@pytest.mark.parametrize(
    ("choose", "other", "row"),
    [
        *((stopping_row, [EXHAUSTED, 5], [status, 0]) for status in (FAILED, CLOSING, FAILED | EXHAUSTED)),
        (cause_row, [0, 0], [8, 9]),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_process_that_stops_or_has_the_cause_speaks_for_its_rank(
    choose: Callable[..., int | None], other: list[int], row: list[int], at: int
) -> None:
    rows = [other, other]
    rows[at] = row
    assert gathered([*rows, [0, 7], [0, 7]], choose) == [row, [0, 7]]


def test_an_exchange_goes_to_the_process_in_the_same_place() -> None:
    """Process 2 is the second of its rank, so its partner is process 3, the second of rank 0."""
    whole = FourProcesses([[0]] * 4)
    transport = MeshTransport(whole, (0, 1, 1, 0))  # type: ignore[arg-type]
    received = transport.exchange({0: np.zeros(1, np.uint8)}, [0])
    assert (whole.sent_to, received[0].tolist()) == ([3], [3])
