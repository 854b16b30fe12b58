"""Loops that end before their data on all ranks, by break, error, close or neglect: nothing is left over."""

import gc
import threading
from typing import Any

import pytest
import torch.distributed as dist
from ranks_support import run_ranks, values
from ranks_training import Case, in_order, numbers_of, take, watched_epoch
from waiting import descriptors, eventually, native_threads, nothing_is_left, threads_end

import odb_stream as odb

MANY = Case((300, 300, 300), settings={"lookahead": 4})
"""About 80 steps."""
FEW = Case((12, 8), settings={"budget": odb.Budget(200)})
QUOTA = Case((30, 20), settings={"closure": "quota", "quota": 20})


def break_then_go_on(at: list[int]) -> tuple[Any, Any]:
    with MANY.loader() as stream:
        started = take(iter(stream), at[dist.get_rank()])
        record = watched_epoch(stream)
        report = stream.report()
    nothing_is_left()
    return len(started), (record, report)


@pytest.mark.parametrize("at", [[5, 5, 5], [1, 2, 2], [0, 0, 0]])
def test_after_a_break_on_all_ranks_the_next_loop_is_a_whole_epoch(at: list[int]) -> None:
    """Ranks that all stop within a round get no error; nothing of the broken epoch reaches the next."""
    results = values(run_ranks(break_then_go_on, 3, at))
    assert [steps for steps, _ in results] == at
    records = [record for _, (record, _) in results]
    assert in_order(record.emitted for record in records) == MANY.numbers
    assert {info["epoch"] for record in records for info in record.infos} == {1}
    reports = [report for _, (_, report) in results]
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


def restart() -> tuple[int, Any]:
    with MANY.loader() as stream:
        old = iter(stream)
        took = take(old, 1 + (dist.get_rank() > 0))  # both are steps of the first round, so that nobody misses any
        new = iter(stream)
        with pytest.raises(odb.StateError, match="iterator of epoch 0 was ended"):
            next(old)
        return len(took), watched_epoch(new)


def test_a_new_iterator_ends_the_old_one_on_all_ranks() -> None:
    results = values(run_ranks(restart, 3))
    assert in_order(record.emitted for _, record in results) == MANY.numbers
