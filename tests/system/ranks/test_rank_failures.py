"""Failures of one rank: a stage that raises, a worker or a whole rank that is killed."""

import os
import signal
from typing import Any

import pytest
import torch.distributed as dist
from ranks_data import FailAt, forbid
from ranks_support import run_ranks, values
from ranks_training import Case, in_order, numbers_of, schedule, schedules
from waiting import threads_end

import odb_stream as odb

CASE = Case((260, 400, 300), shuffle=False, settings={"budget": odb.Budget(400), "window": 32, "lookahead": 64})
"""Rounds of 2, 4, 8, 16, 32 steps until the drain, of about 8 samples a rank and step."""
BAD = 260 + 299
"""One of rank 1's samples, reached in the fifth round."""
AGREED = 30
"""The steps of the four rounds before."""
TIMEOUT = 10.0
"""Seconds of silence that even a busy machine never reaches."""


def run_into_failure(stages: tuple[Any, ...], workers: int, late: bool) -> tuple[list[list[int]], str]:
    """The steps until the error, and its type and text."""
    stream = CASE.loader(*stages, workers=workers)
    got = []
    with stream:
        iterator = iter(stream)
        if late:
            threads_end("odb_stream-prefetch")  # whatever it will ever deliver now waits for the loop
        while True:
            try:
                batch = next(iterator)
            except odb.OdbStreamError as error:
                with pytest.raises(type(error)):
                    next(iterator)
                dist.barrier()
                return got, f"{type(error).__name__}: {error}"
            got.append(numbers_of(batch))


@pytest.mark.parametrize("late", [False, True], ids=["loop keeps up", "loop is late"])
def test_a_stage_that_raises_is_raised_on_every_rank_at_the_same_step(late: bool) -> None:
    """All steps agreed on come first, even if the failure has long been known; then rank, stage, cause and sample.

    Fails when an error overtakes the finished steps, or a failing rank does not tell the others.
    """
    whole = schedules(CASE)
    results = values(run_ranks(run_into_failure, 3, (FailAt(BAD),), 0, late))
    assert {len(got) for got, _ in results} == {AGREED}
    for rank, (got, error) in enumerate(results):
        assert got == whole[rank][: len(got)]
        for part in ("PeerError: rank 1 failed", "FailAt", f"ValueError: number {BAD} is not allowed", "sample"):
            assert part in error


def fail_amid_an_update() -> list[Any]:
    """The step infos before the error, with four steps an update."""
    with CASE.loader(FailAt(BAD), grad_accum=4) as stream:
        iterator = iter(stream)
        infos = [odb.pop_step(next(iterator)) for _ in range(AGREED)]
        with pytest.raises(odb.PeerError, match="rank 1 failed"):
            next(iterator)
    return infos


def test_a_failure_amid_an_update_makes_it_a_shorter_one() -> None:
    """The steps before it are yielded, the last one marked as the last, and their loss scale is over them alone."""
    ranks = values(run_ranks(fail_amid_an_update, 3))
    for infos in ranks:
        assert [info.step for info in infos if info.accum_last] == [3, 7, 11, 15, 19, 23, 27, AGREED - 1]
        last = infos[28:]
        total = sum(info.global_supervised_tokens for info in last)
        assert [info.loss_scale for info in last] == pytest.approx(
            [info.supervised_tokens * 3 / total for info in last]
        )


WAYS = {
    "a stage in a worker": (FailAt(BAD), 2, ("FailAt", f"ValueError: number {BAD} is not allowed")),
    "a killed worker": (FailAt(BAD, "kill"), 2, ("WorkerError: worker", "SIGKILL")),
    "a sample that is too large": (FailAt(BAD, "grow"), 0, ("OversizeError", "budget is 400")),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_ends_one_ranks_data_is_raised_on_every_rank(way: str) -> None:
    """How far a rank is when its worker dies is chance, but all ranks raise at the same step."""
    stage, workers, parts = WAYS[way]
    results = values(run_ranks(run_into_failure, 3, (stage,), workers, False))
    steps = {len(got) for got, _ in results}
    assert len(steps) == 1
    assert steps == {AGREED} or way == "a killed worker"
    for _, error in results:
        for part in ("PeerError: rank 1 failed", *parts):
            assert part in error


def fail_and_continue() -> tuple[int, str, list[int]]:
    """A failure that an epoch draws by chance: the next epoch is whole again on all ranks."""
    with CASE.loader(FailAt(BAD, "once")) as stream:
        steps = 0
        try:
            for _ in stream:
                steps += 1
        except odb.PeerError as error:
            failed = str(error)
        again = [n for batch in stream if odb.pop_step(batch).samples for n in numbers_of(batch)]
    return steps, failed, again


def test_after_a_failure_the_next_epoch_is_in_step_again() -> None:
    results = values(run_ranks(fail_and_continue, 3))
    assert {steps for steps, _, _ in results} == {AGREED}
    assert all("rank 1 failed" in failed for _, failed, _ in results)
    assert in_order(numbers for _, _, numbers in results) == CASE.numbers


QUOTA = {"closure": "quota", "quota": 10}


@pytest.mark.parametrize(
    ("case", "stages", "words"),
    [
        (CASE, [forbid], ["StageError", "'forbidden': 960"]),  # every sample of the epoch is dropped
        (Case((40, 30), settings=QUOTA), [forbid], ["pass 0", "forbidden"]),
        (Case((40, 0), settings=QUOTA), [], ["rank 1", "pass 0"]),  # a rank has no data to repeat
    ],
)
def test_an_epoch_without_samples_is_an_error_on_all_ranks(case: Case, stages: list[Any], words: list[str]) -> None:
    for outcome in run_ranks(schedule, len(case.shares), case, *stages):
        assert outcome.error
        assert all(word in f"{outcome.error}: {outcome.text}" for word in words)


def one_is_killed(victim: int, at: int) -> tuple[int, str]:
    """Steps before the error, and the error. The victim is killed once all have reached step ``at``."""
    store: Any = dist.group.WORLD.get_group_store()
    rank, others = dist.get_rank(), [other for other in range(dist.get_world_size()) if other != victim]
    stream = CASE.loader(lookahead=4)
    iterator = iter(stream)
    for step in range(1000):
        if step == at and rank == victim:
            store.wait([f"rank {other} is there" for other in others])
            os.kill(os.getpid(), signal.SIGKILL)
        if step == at:
            store.set(f"rank {rank} is there", "")
        try:
            next(iterator)
        except odb.PeerError as error:
            stream.close()
            return step, str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize(("victim", "at"), [(0, 5), (1, 5), (2, 0)])
def test_a_rank_that_is_killed_fails_the_others_by_its_name(victim: int, at: int) -> None:
    """Long before ``timeout``, which is ten minutes; also when the rank that hosts the store is the one.

    Fails when the end of a rank's connection is not taken for its death.
    """
    outcomes = run_ranks(one_is_killed, 3, victim, at, exits={victim: -signal.SIGKILL})
    del outcomes[victim]
    for steps, error in values(outcomes):
        assert f"rank {victim} died" in error
        assert steps >= at


def freeze_rank_1() -> None:
    """Its whole process is stopped, so it gives no sign of life. It is killed once the others have given it up."""
    pids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    stream = CASE.loader(timeout=TIMEOUT, lookahead=4)
    iterator = iter(stream)
    next(iterator)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        for _ in iterator:
            pass
    finally:
        if dist.get_rank() == 0:
            os.kill(pids[1], signal.SIGKILL)


@pytest.mark.slow
def test_a_rank_that_is_frozen_is_given_up_after_the_timeout() -> None:
    """Fails when nobody looks for silence."""
    outcomes = run_ranks(freeze_rank_1, 3, exits={1: -signal.SIGKILL})
    for rank in (0, 2):
        assert outcomes[rank].error == "AlignmentTimeout"
        assert "rank 1 gave no sign of life" in outcomes[rank].text
