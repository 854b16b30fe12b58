"""One rank leaves while the others go on: they stop together where the agreed steps end, and nobody waits."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from ranks_support import run_ranks, values
from ranks_training import Case, in_order, numbers_of, schedule, schedules, take
from waiting import nothing_is_left, threads_end

import odb_stream as odb

LOOKAHEAD = 2
MANY = Case((300, 300, 300), settings={"lookahead": LOOKAHEAD})
"""About 80 steps; until the drain, rounds of LOOKAHEAD steps without moves."""


def close_alone(when: str) -> int:
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
    return 1


@pytest.mark.parametrize("when", ["in the middle", "before the first step"])
def test_close_waits_for_no_peer(when: str) -> None:
    """Fails when ``close`` waits for the others to reach the next gather."""
    values(run_ranks(close_alone, 3, when))


def leave_alone(leave: Callable[[odb.Loader], None], at: int) -> tuple[list[list[int]], str]:
    """Rank 1 leaves after some steps, the others go on; what each got, and the error of the others."""
    stream = MANY.loader()
    iterator = iter(stream)
    got = take(iterator, at)
    if dist.get_rank() == 1:
        iterator = None
        leave(stream)
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


def stay(stream: odb.Loader) -> None:
    """Break and do something else: the loader stays open."""


@pytest.mark.parametrize("leave", [stay, odb.Loader.close], ids=["break", "close"])
@pytest.mark.parametrize("at", [0, 5])
def test_one_rank_that_leaves_stops_the_others_where_the_agreed_steps_end(
    leave: Callable[[odb.Loader], None], at: int
) -> None:
    """All others get the same steps, those of the full schedule, to the end of a round, then an error naming the rank.

    Fails when the background thread does not run the program to its end after its loop has left.
    """
    whole = schedules(MANY)
    results = values(run_ranks(leave_alone, 3, leave, at))
    (first, error_0), (_, error_1), (third, error_2) = results
    assert error_1 == ""
    assert "rank 1 left" in error_0
    assert "rank 1 left" in error_2
    assert len(first) == len(third) >= at
    assert len(first) % LOOKAHEAD == 0
    assert len(first) < len(whole[0]) - 3 * LOOKAHEAD
    assert first == whole[0][: len(first)]
    assert third == whole[2][: len(third)]


def leave_at_the_end() -> tuple[int, str]:
    """Rank 1 leaves when its last round is agreed on, the others reach that end later."""
    with Case((10, 10, 10)).loader() as stream:
        iterator = iter(stream)
        got = take(iterator, 1)
        if dist.get_rank() == 1:
            stream.close()
        dist.barrier()
        got += [] if dist.get_rank() == 1 else take(iterator, 1000)
        return len(got), ""


def test_peers_whose_epoch_is_agreed_on_finish_it() -> None:
    """A rank that leaves in its last round leaves the others nothing to agree on: no error."""
    steps = [steps for steps, _ in values(run_ranks(leave_at_the_end, 3))]
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
    case = Case((60, 60, 60))
    stream = case.loader()
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


def slow_at_the_start(frame: Any, event: str, argument: Any) -> None:
    """A profile function that delays the first use of the store by a rank's heartbeat."""
    if event == "call" and frame.f_code.co_name == "_beat":
        sys.setprofile(None)
        threading.Event().wait(3)


def meet_a_slow_hub() -> list[list[int]]:
    if dist.get_rank() == 0:
        threading.setprofile(slow_at_the_start)
    return schedule(Case((20, 20, 20)))


def test_a_rank_that_waits_for_a_slow_answer_is_not_taken_for_dead() -> None:
    """The store's host looks up the names of those who connect, and may hang for seconds if no name server answers.

    Fails when a rank gives up a connection that rank 0 accepts late.
    """
    outcomes = run_ranks(meet_a_slow_hub, 3)
    assert in_order(values(outcomes)) == list(range(60))
    assert not any("found no way to connect" in outcome.output for outcome in outcomes)


def slow_to_send(frame: Any, event: str, argument: Any) -> None:
    """A profile function that delays a rank just before it sends groups to others."""
    if event == "call" and frame.f_code.co_name == "encode_groups":
        threading.Event().wait(1.5)


def end_before_the_last_exchange() -> list[list[int]]:
    """In the last round groups move from rank 3 to rank 2 only, late; rank 0, the store's host, has no part in it."""
    if dist.get_rank() == 3:
        threading.setprofile(slow_to_send)
    return schedule(Case((50, 50, 20, 60), settings={"window": 8}))


def test_no_rank_ends_while_others_still_exchange_groups() -> None:
    """Fails when the first steps after an exchange are delivered before all ranks have what moved."""
    assert in_order(values(run_ranks(end_before_the_last_exchange, 4))) == list(range(180))
