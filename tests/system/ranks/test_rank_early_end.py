"""Loops that end before their data.

On all ranks, by break, error, close or neglect: nothing is left over. On one alone: the others stop together where the
agreed steps end, and nobody waits.
"""

import functools
import gc
import sys
import threading
from typing import Any

import pytest
import torch.distributed as dist
from ranks_support import run_ranks, values
from ranks_training import Case, EpochRecord, in_order, numbers_of, schedule, schedules, take, watched_epoch
from waiting import descriptors, eventually, native_threads, nothing_is_left, threads_end

import odb_stream as odb

LOOKAHEAD = 2
MANY = Case((300, 300, 300), settings={"lookahead": LOOKAHEAD})
"""About 80 steps; until the drain, rounds of LOOKAHEAD steps without moves."""
FEW = Case((12, 8), settings={"budget": odb.Budget(200)})
QUOTA = Case((30, 20), settings={"closure": "quota", "quota": 20})


def break_then_go_on(at: list[int], keeps: bool) -> tuple[int, EpochRecord, dict[str, Any]]:
    with MANY.loader() as stream:
        started = take(old := iter(stream), at[dist.get_rank()])
        if not keeps:
            old = iter(())  # the loop forgets its iterator
        record = watched_epoch(stream)
        if keeps:
            with pytest.raises(odb.StateError, match="iterator of epoch 0 was ended"):
                next(old)
        report = stream.report()
    nothing_is_left()
    return len(started), record, report


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("at", [[5, 5, 5], [1, 2, 2], [0, 0, 0]])
def test_after_a_break_on_all_ranks_the_next_loop_is_a_whole_epoch(at: list[int], keeps: bool) -> None:
    """Ranks that all stop within a round get no error; nothing of the broken epoch reaches the next.

    An iterator that is kept has ended.
    """
    steps, records, reports = zip(*values(run_ranks(break_then_go_on, 3, at, keeps)), strict=True)
    assert list(steps) == at
    assert in_order(record.emitted for record in records) == MANY.numbers
    assert {info["epoch"] for record in records for info in record.infos} == {1}
    assert sum(report["emitted"] + report["abandoned"] for report in reports) == 2 * len(MANY.numbers)
    # What a rank took, others may not have: only what all took counts for all.
    assert {report["global"]["dropped"] == {} for report in reports} == {True}


def end_early(how: str, workers: int) -> str:
    stream = MANY.loader(workers=workers)
    caught = ""
    try:
        with stream:
            for step, batch in enumerate(stream):
                numbers_of(batch)
                if step == 5 and how == "break":
                    break
                if step == 5 and how == "close":
                    stream.close()
                if step == 5 and how == "raise":
                    raise KeyError("the loop's own error")
    except (KeyError, odb.StateError) as error:
        caught = type(error).__name__
    nothing_is_left()
    return caught


@pytest.mark.parametrize(
    ("how", "workers", "caught"),
    [("break", 0, ""), ("break", 2, ""), ("close", 0, "StateError"), ("raise", 0, "KeyError")],
)
def test_an_early_end_on_all_ranks_leaves_nothing_behind(how: str, workers: int, caught: str) -> None:
    """A loop that raises raises its own error; no thread and no worker process is left."""
    assert values(run_ranks(end_early, 3, how, workers)) == [caught] * 3


def short_epochs() -> None:
    """No more descriptors and threads than after the warm-up, after 50 epochs, and after 20 broken ones."""
    counts: list[tuple[int, int]] = []

    def note() -> None:
        dist.barrier()
        threads_end("odb_stream-prefetch")
        gc.collect()
        counts.append((descriptors(), native_threads()))
        # A thread that was joined is among the native ones for a moment more.
        eventually(lambda: descriptors() <= counts[0][0] and native_threads() <= counts[0][1])
        dist.barrier()

    with FEW.loader() as stream:
        for _ in range(2):
            assert len(watched_epoch(stream).infos) > 1
        take(iter(stream), 1)
        stream.report()
        for _ in range(2):
            watched_epoch(stream)
        note()
        for _ in range(50):
            watched_epoch(stream)
        note()
        for _ in range(20):
            take(iter(stream), 1)
        watched_epoch(stream)
        note()
    nothing_is_left()


def test_epochs_leak_neither_descriptors_nor_threads() -> None:
    """Flat over 50 short epochs and over 20 that were broken off.

    Fails when a closed channel keeps the error that ended it: its traceback holds on to everything.
    """
    values(run_ranks(short_epochs, 2))


def build_and_drop(how: str) -> None:
    before = 0
    for turn in range(8):
        stream = (QUOTA if how == "quota" else FEW).loader(workers=1 if how == "workers" else 0)
        watched_epoch(stream)
        take(iter(stream), 1)
        if how == "close":
            stream.close()
        del stream
        gc.collect()
        nothing_is_left()
        dist.barrier()
        before = descriptors() if turn == 1 else before
    # The store's host closes its ends of connections a moment after they were hung up.
    eventually(lambda: descriptors() <= before)
    dist.barrier()


@pytest.mark.parametrize("how", ["close", "drop", "quota", pytest.param("workers", marks=pytest.mark.slow)])
def test_a_loader_that_is_closed_or_forgotten_gives_everything_back(how: str) -> None:
    """Threads end, worker processes end, and after eight loaders no more descriptors are open than after two."""
    values(run_ranks(build_and_drop, 2, how))


def forget_between_epochs(shares: tuple[int, ...]) -> None:
    stream = Case(shares, settings=QUOTA.settings).loader(lookahead=2)
    watched_epoch(stream)
    threading.Event().wait(0.5)  # the queue is full by now; if it is not, this only proves less
    del stream
    gc.collect()
    nothing_is_left()


@pytest.mark.parametrize("shares", [(50,), (30, 20)])
def test_an_endless_stream_ends_with_its_loader(shares: tuple[int, ...]) -> None:
    """Between two epochs of a quota the stream continues in the background: only the loader keeps it alive.

    Fails when the thread itself refers to the stream.
    """
    values(run_ranks(forget_between_epochs, len(shares), shares))


def loop_over_a_nameless_loader() -> list[int]:
    found = []
    for batch in MANY.loader():
        if not found:
            gc.collect()
        if odb.pop_step(batch).samples:
            found += numbers_of(batch)
    return found


def test_the_loop_keeps_its_loader_alive() -> None:
    """``for batch in Loader(...)``: nothing but the iterator refers to the loader.

    Fails when the loader leaves the others once it is forgotten, although its loop runs.
    """
    assert in_order(values(run_ranks(loop_over_a_nameless_loader, 3))) == MANY.numbers


def close_alone(when: str) -> None:
    """Rank 1 closes while the others do not. If it waited for them, they would never meet at the barrier."""
    stream = MANY.loader()
    iterator = iter(stream)
    if when == "in the middle":
        take(iterator, 3)
    if dist.get_rank() == 1:
        stream.close()
        stream.close()
    dist.barrier()
    with pytest.raises(odb.StateError) if dist.get_rank() == 1 else pytest.raises(odb.PeerError, match="rank 1 left"):
        take(iterator, 1000)
    dist.barrier()
    stream.close()
    nothing_is_left()


@pytest.mark.parametrize("when", ["in the middle", "before the first step"])
def test_close_waits_for_no_peer(when: str) -> None:
    """Fails when ``close`` waits for the others to reach the next gather."""
    values(run_ranks(close_alone, 3, when))


def leave_alone(closes: bool, at: int) -> tuple[list[list[int]], str]:
    """Rank 1 leaves after some steps, the others go on; what each got, and the error of the others.

    It closes its loader, or breaks and does something else while the loader stays open.
    """
    stream = MANY.loader()
    iterator = iter(stream)
    got = take(iterator, at)
    if dist.get_rank() == 1:
        iterator = None
        if closes:
            stream.close()
        dist.barrier()
        stream.close()
        return got, ""
    try:
        for batch in iterator:
            got.append(numbers_of(batch))
    except odb.PeerError as error:
        # A further call raises again.
        with pytest.raises(odb.PeerError):
            next(iterator)
        return got, str(error)
    finally:
        dist.barrier()
        stream.close()
    return got, "no error"


@pytest.mark.parametrize("closes", [False, True], ids=["break", "close"])
@pytest.mark.parametrize("at", [0, 5])
def test_one_rank_that_leaves_stops_the_others_where_the_agreed_steps_end(closes: bool, at: int) -> None:
    """All others get the same steps, those of the full schedule, to the end of a round, then an error naming the rank.

    Fails when the background thread does not run the program to its end after its loop has left.
    """
    whole = schedules(MANY)
    results = values(run_ranks(leave_alone, 3, closes, at))
    (first, error_0), (_, error_1), (third, error_2) = results
    assert error_1 == ""
    assert "rank 1 left" in error_0
    assert "rank 1 left" in error_2
    assert len(first) == len(third) >= at
    assert len(first) % LOOKAHEAD == 0
    assert len(first) < len(whole[0]) - 3 * LOOKAHEAD
    assert first == whole[0][: len(first)]
    assert third == whole[2][: len(third)]


def leave_at_the_end() -> int:
    """Rank 1 leaves when its last round is agreed on, the others reach that end later."""
    with Case((10, 10, 10)).loader() as stream:
        iterator = iter(stream)
        got = take(iterator, 1)
        if dist.get_rank() == 1:
            stream.close()
        dist.barrier()
        got += [] if dist.get_rank() == 1 else take(iterator, 1000)
        return len(got)


def test_peers_whose_epoch_is_agreed_on_finish_it() -> None:
    """A rank that leaves in its last round leaves the others nothing to agree on: no error."""
    steps = values(run_ranks(leave_at_the_end, 3))
    assert steps[0] == steps[2] > 1 == steps[1]


def raise_alone() -> None:
    with MANY.loader() as stream:
        for step, _ in enumerate(stream, 1):
            print("a step")
            if dist.get_rank() == 2 and step == 6:
                raise ZeroDivisionError("a loss went wrong")


def test_an_error_in_one_loop_stops_the_others_at_one_step() -> None:
    outcomes = run_ranks(raise_alone, 3)
    first, second, third = (outcome.output.splitlines().count("a step") for outcome in outcomes)
    assert third == 6
    assert first == second
    assert first % LOOKAHEAD == 0
    assert [outcome.error for outcome in outcomes] == ["PeerError", "PeerError", "ZeroDivisionError"]
    # They left in their turn, but both name the cause.
    assert all("rank 2 left" in outcome.text for outcome in outcomes[:2])


def end_at_different_times() -> list[list[int]]:
    """Rank 0, which hosts the store, has finished and gone before the others have taken their steps."""
    stream = Case((60, 60, 60)).loader()
    iterator = iter(stream)
    got = take(iterator, 1000 if dist.get_rank() == 0 else 1)
    if dist.get_rank() == 0:
        stream.close()
        dist.barrier()
        return got
    threads_end("odb_stream-prefetch")
    dist.barrier()
    got += take(iterator, 1000)
    stream.close()
    nothing_is_left()
    return got


def test_the_first_rank_to_end_takes_nothing_from_the_others() -> None:
    assert in_order(values(run_ranks(end_at_different_times, 3))) == list(range(180))


def slow(name: str, seconds: float, once: bool, frame: Any, event: str, argument: Any) -> None:
    """A profile function that delays a rank's threads whenever they enter a function, or the first time."""
    if event == "call" and frame.f_code.co_name == name:
        if once:
            sys.setprofile(None)
        threading.Event().wait(seconds)


def meet_a_slow_hub() -> list[list[int]]:
    if dist.get_rank() == 0:
        threading.setprofile(functools.partial(slow, "_beat", 3, True))  # its heartbeat's first use of the store
    return schedule(Case((20, 20, 20)))


def test_a_rank_that_waits_for_a_slow_answer_is_not_taken_for_dead() -> None:
    """The store's host looks up the names of those who connect, and may hang for seconds if no name server answers.

    Fails when a rank gives up a connection that rank 0 accepts late.
    """
    outcomes = run_ranks(meet_a_slow_hub, 3)
    assert in_order(values(outcomes)) == list(range(60))
    assert not any("found no way to connect" in outcome.output for outcome in outcomes)


def end_before_the_last_exchange() -> list[list[int]]:
    """In the last round groups move from rank 3 to rank 2 only, late; rank 0, the store's host, has no part in it."""
    if dist.get_rank() == 3:
        threading.setprofile(functools.partial(slow, "encode_groups", 1.5, False))  # just before it sends groups
    return schedule(Case((50, 50, 20, 60), settings={"window": 8}))


def test_no_rank_ends_while_others_still_exchange_groups() -> None:
    """Fails when the first steps after an exchange are delivered before all ranks have what moved."""
    assert in_order(values(run_ranks(end_before_the_last_exchange, 4))) == list(range(180))
