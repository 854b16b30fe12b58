"""What ranks learn of each other in a store: points where all go on or none does, and signs of life.

The points in every order of arrivals and of the event that calls a point off; then clocks, ages, and what a rank
concludes from them.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import MemoryStore
from waiting import PATIENCE, eventually

from odb_stream.errors import AlignmentTimeout, PeerError
from odb_stream.ranks import heartbeat
from odb_stream.ranks.heartbeat import MOST_SECONDS, Ages, Heartbeat, RunningClock
from odb_stream.ranks.liveness import Liveness
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


def test_a_pause_of_this_process_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.5, 1000.0, 1000.25])
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: next(times)))
    clock = RunningClock()
    assert [clock.now() for _ in range(3)] == [0.5, 0.5 + MOST_SECONDS, 0.75 + MOST_SECONDS]


@given(st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 2), min_size=3, max_size=3)), min_size=1))
def test_an_age_is_the_time_since_the_last_change(readings: Sequence[tuple[int, list[int]]]) -> None:
    ages, now = Ages(3, 0.0), 0.0
    last, changed = [b"", b"", b""], [0.0, 0.0, 0.0]
    for step, values in readings:
        now += step
        counts = [str(value).encode() for value in values]
        ages.record(counts, now)
        changed = [now if new != old else at for new, old, at in zip(counts, last, changed, strict=True)]
        last = counts
    expected = {rank: now - at for rank, at in enumerate(changed) if now - at > 2}
    assert ages.older_than(2, now) == expected


class Crew:
    """Heartbeats of three ranks over one store, without connections; all by one ``clock`` if one is given."""

    def __init__(self, *, timeout: float = 600.0, size: int = 3, clock: Any = None) -> None:
        self.store = MemoryStore()
        self.rendezvous = [Rendezvous(self.store, rank=rank, size=size) for rank in range(size)]
        self.beats = [
            Heartbeat(
                self.store, Liveness(rank), meeting, rank=rank, size=size, interval=0.02, timeout=timeout, clock=clock
            )
            for rank, meeting in enumerate(self.rendezvous)
        ]
        for beat in self.beats:
            beat.start()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        self.store.answers.set()
        for beat in self.beats:
            beat.stop(PATIENCE)
            assert not beat._thread.is_alive()

    def event(self, rank: int, within: float = PATIENCE) -> PeerEvent | None:
        return self.beats[rank].wait_for_event(within)

    def let_beat(self, *ranks: int) -> None:
        """Wait until each of these ranks has made a whole beat more."""
        before = [self.beats[rank]._count for rank in ranks]
        eventually(lambda: all(self.beats[rank]._count >= n + 2 for rank, n in zip(ranks, before, strict=True)))

    def let_finish_its_beat(self, rank: int) -> None:
        """Wait until a heartbeat listens again, so that the beat it was in the middle of is over."""
        liveness, listening = self.beats[rank]._liveness, threading.Event()
        listen = liveness.listen

        def watched(seconds: float) -> list[PeerEvent]:
            listening.set()
            return listen(seconds)

        liveness.listen = watched  # type: ignore[method-assign]
        assert listening.wait(PATIENCE)


def test_all_ranks_learn_of_the_same_first_event() -> None:
    with Crew() as crew:
        for rank in range(3):
            crew.beats[rank].publish(PeerEvent("broken", (rank,), "at the same time"))
        first = crew.event(0)
        assert first is not None
        assert [crew.event(rank) for rank in range(3)] == [first] * 3
        assert crew.beats[0].event_about(range(3)) == first


def test_one_that_leaves_calls_off_what_the_others_wait_for() -> None:
    with Crew() as crew:
        refusals: list[PeerEvent | None] = []
        waiting = threading.Thread(target=lambda: refusals.append(crew.rendezvous[1].meet_all()))
        waiting.start()
        crew.beats[2].leave()
        waiting.join(PATIENCE)
        assert refusals == [PeerEvent("left", (2,))]


def test_one_that_leaves_because_of_another_names_that_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the others learn only that it left, and perhaps before they learn of the rank that began."""
    with Crew() as crew:
        said: list[PeerEvent] = []
        monkeypatch.setattr(crew.beats[1]._liveness, "send", said.append)
        crew.beats[1].blame(PeerEvent("died", (2,)))
        crew.beats[1].leave()
        assert said[:2] == [PeerEvent("died", (2,)), PeerEvent("left", (1,))]


def test_silence_matters_only_while_one_waits() -> None:
    clock = SimpleNamespace(seconds=0.0, now=lambda: clock.seconds)
    with Crew(timeout=7.0, clock=clock) as crew:
        crew.beats[2].stop(PATIENCE)
        crew.let_beat(0, 1)
        clock.seconds += 8.0
        eventually(lambda: [crew.beats[rank].silent(7.0) for rank in (0, 1)] == [(2,), (2,)])
        crew.let_beat(0, 1)
        assert crew.event(0, within=0.0) is None
        with crew.beats[1].while_waiting():
            assert crew.event(1) == crew.event(0) == PeerEvent("silent", (2,), "8.0 s (timeout 7 s)")


def test_a_store_that_does_not_answer_is_noticed_by_the_age_of_its_last_answer() -> None:
    with Crew() as crew:
        crew.let_beat(1)
        crew.store.answers.clear()
        eventually(lambda: crew.beats[1].silence() > 0.5)
        assert crew.beats[1].first is None
        crew.store.answers.set()
        eventually(lambda: crew.beats[1].silence() < 0.5)


def test_a_lost_store_is_remembered_and_events_still_arrive() -> None:
    with Crew() as crew:
        crew.store.lose()
        eventually(lambda: crew.beats[1].lost is not None)
        assert crew.event(1, within=0.0) is None
        crew.beats[1].publish(PeerEvent("died", (0,)))
        assert crew.event(1) == PeerEvent("died", (0,))


def test_after_the_hub_has_left_nobody_calls_the_store() -> None:
    """Its host may end now, and every call would print pages of warnings."""
    with Crew() as crew:
        crew.beats[0].leave()
        assert [crew.event(rank) for rank in range(3)] == [PeerEvent("left", (0,))] * 3
        crew.beats[0].stop(PATIENCE)
        for rank in (1, 2):
            crew.let_finish_its_beat(rank)
        crew.store.lose()
        for rank in (1, 2):
            crew.beats[rank].leave()
            crew.beats[rank].stop(PATIENCE)
            assert crew.beats[rank].lost is None


def test_no_beat_follows_the_event_that_the_hub_has_left() -> None:
    """Not even one that is already due: a rank that was held up receives the event at the same time."""
    with Crew() as crew:
        beat, store = crew.beats[1], crew.store
        listen = beat._liveness.listen

        def held_up(seconds: float) -> list[PeerEvent]:
            beat._liveness.listen = listen  # type: ignore[method-assign]
            threading.Event().wait(max(seconds, 0.0))
            store.lose()
            return [PeerEvent("left", (0,))]

        beat._liveness.listen = held_up  # type: ignore[method-assign]
        assert crew.event(1) == PeerEvent("left", (0,))
        crew.let_finish_its_beat(1)
        assert beat.lost is None
