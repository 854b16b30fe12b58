"""The transports that need no other process to be tested: of one rank, and of ranks that several processes share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from odb_stream.batching.messages import CLOSING, EXHAUSTED, FAILED, cause_row, equal_rows, stopping_row
from odb_stream.errors import PeerError
from odb_stream.ranks.mesh import MeshTransport
from odb_stream.ranks.transport import Left, Local, Transport, checked_exchange


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
