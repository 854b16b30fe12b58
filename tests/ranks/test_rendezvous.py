"""Points where all go on or none does: every order of arrivals and of the event that calls a point off."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import MemoryStore
from waiting import PATIENCE, eventually

from odb_stream.errors import AlignmentTimeout, PeerError
from odb_stream.ranks.peer_events import PeerEvent
from odb_stream.ranks.rendezvous import Rendezvous

LEFT_2 = PeerEvent("left", (2,))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """One thread a rank, as in the real thing, so that a blocked call blocks nobody else."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


def arrived(store: MemoryStore, point: str, number: int) -> None:
    """Wait until so many have arrived at a point."""
    eventually(lambda: int(store.values.get(f"{point}/arrived", b"0")) >= number)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_an_event_before_the_last_arrival_stops_all_and_after_it_none(before: int, threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    ranks = [Rendezvous(store, rank=rank, size=3) for rank in range(3)]
    early = [threads.submit(ranks[rank].meet_all) for rank in range(before)]
    arrived(store, "gather/0", before)
    if before == 3:  # the last to arrive decides a moment later
        eventually(lambda: "gather/0" in store.values)
    ranks[0].call_off(store, {2: LEFT_2})
    late = [threads.submit(ranks[rank].meet_all) for rank in range(before, 3)]
    outcomes = [future.result(PATIENCE) for future in [*early, *late]]
    assert outcomes == [None if before == 3 else LEFT_2] * 3


def test_whoever_is_first_decides_for_all(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    ranks = [Rendezvous(store, rank=rank, size=2) for rank in range(2)]
    waiting = threads.submit(ranks[0].meet_all)
    arrived(store, "gather/0", 1)
    ranks[1].call_off(store, {1: PeerEvent("left", (1,))})
    ranks[0].call_off(store, {1: PeerEvent("died", (1,))})
    assert waiting.result(PATIENCE) == PeerEvent("left", (1,))


def test_the_next_gather_is_called_off_for_a_rank_that_is_not_there_yet(threads: ThreadPoolExecutor) -> None:
    """Rank 1 knows that it will never reach the second gather, although it does not wait there."""
    store = MemoryStore()
    ranks = [Rendezvous(store, rank=rank, size=2) for rank in range(2)]
    first = [threads.submit(ranks[rank].meet_all) for rank in range(2)]
    assert [future.result(PATIENCE) for future in first] == [None, None]
    second = threads.submit(ranks[0].meet_all)
    ranks[1].call_off(store, {1: PeerEvent("left", (1,))})
    assert second.result(PATIENCE) == PeerEvent("left", (1,))


def test_pairs_without_a_rank_that_is_gone_go_on(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    ranks = [Rendezvous(store, rank=rank, size=4) for rank in range(4)]
    waiting = threads.submit(ranks[0].meet_pairs, [(0, 1), (2, 0)])
    arrived(store, "pair/2/0/0", 1)
    for rank in (0, 1):
        ranks[rank].call_off(store, {2: LEFT_2})
    other = threads.submit(ranks[1].meet_pairs, [(0, 1)])
    assert other.result(PATIENCE) == {(0, 1): None}
    assert waiting.result(PATIENCE) == {(0, 1): None, (2, 0): LEFT_2}


@given(st.lists(st.sampled_from(["gather", "exchange"]), max_size=12))
def test_keys_of_the_past_are_deleted(calls: list[str]) -> None:
    store = MemoryStore()
    ranks = [Rendezvous(store, rank=rank, size=2) for rank in range(2)]
    exchanges = 0
    with ThreadPoolExecutor(2) as threads:
        for call in calls:
            exchanges = 0 if call == "gather" else exchanges + 1
            for future in [
                threads.submit(rank.meet_all) if call == "gather" else threads.submit(rank.meet_pairs, [(0, 1), (1, 0)])
                for rank in ranks
            ]:
                future.result(PATIENCE)
            # The last gather's two keys, and of each exchange after it four.
            assert len(store.values) <= 2 + 4 * exchanges


EVENTS = [
    (PeerEvent("left", (1,)), PeerError, "rank 1 left "),
    (PeerEvent("died", (0, 2)), PeerError, "ranks 0, 2 died (its process is gone)"),
    (PeerEvent("silent", (3,), "7.0 s"), AlignmentTimeout, "rank 3 gave no sign of life for 7.0 s"),
    (PeerEvent("broken", (1,), 'a "b"\n'), PeerError, 'a "b"'),
]


@pytest.mark.parametrize(("event", "kind", "words"), EVENTS)
def test_an_event_can_be_written_down_and_becomes_an_error(event: PeerEvent, kind: type, words: str) -> None:
    assert PeerEvent.decode(event.encode()) == PeerEvent.decode(event.encode().encode()) == event
    assert "\n" not in event.encode()
    error = event.error(5)
    assert type(error) is kind
    assert words in str(error)
    assert event.kind != "left" or "rank 5 " in str(error)
