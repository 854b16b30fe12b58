"""The transports without processes: what is particular to them."""

import threading

import numpy as np
import pytest
from memory_transport import InMemoryHub

from odb_stream.errors import PeerError
from odb_stream.ranks.transport import Left, Local, Transport

ONE = np.arange(1)


def test_alone_one_gathers_what_one_has() -> None:
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


@pytest.mark.parametrize("transport", [Local(), InMemoryHub(2).transport(0)])
def test_what_makes_no_sense_is_refused(transport: Transport) -> None:
    with pytest.raises(ValueError, match="int64 values of one dimension, not int32"):
        transport.gather(np.arange(3, dtype=np.int32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"of shape \(1, 1\)"):
        transport.gather(np.zeros((1, 1), np.int64))
    for other in (0, 2, -1):
        with pytest.raises(ValueError, match=f"cannot exchange anything with rank {other}"):
            transport.exchange({}, [other])


def test_an_exchange_takes_bytes() -> None:
    with pytest.raises(ValueError, match="takes uint8 arrays of one dimension, not int64"):
        InMemoryHub(2).transport(0).exchange({1: np.zeros(2, np.int64)}, [])  # type: ignore[dict-item]


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_rank_can_play_dead(dead: int) -> None:
    hub = InMemoryHub(3)
    transports = [hub.transport(rank) for rank in range(3)]
    caught: dict[int, BaseException] = {}

    def wait(rank: int) -> None:
        try:
            transports[rank].gather(ONE)
        except (Left, PeerError) as error:
            caught[rank] = error

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in range(3) if rank != dead]
    for thread in threads:
        thread.start()
    hub.fail(dead)
    for thread in threads:
        thread.join()
    wait(dead)
    assert type(caught.pop(dead)) is Left
    assert len(caught) == 2
    for error in caught.values():
        assert str(error).startswith(f"rank {dead} died ")
