"""A8 in one process: a rank fails at any sample or burst, or leaves at any step, and all others hear of it at the same
step. What needs real processes is in ``tests/system``.
"""

from dataclasses import dataclass

import pytest
from alignment_support import BadRecord, Job, Ranks, Run, jobs, run, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.batching.cost import Size
from odb_stream.errors import PeerError


@dataclass(frozen=True)
class Stop:
    """Where a run must stop: after how many steps, who has left by then, and what failed, by rank."""

    steps: int
    left: frozenset[int]
    causes: dict[int, str]


def expected_stop(whole: Run, leaves: dict[int, int], fails: dict[int, int], spoils: dict[int, int]) -> Stop | None:
    """The stop, from the run without any failure; None when the run comes to its end.

    Ranks tell their status at checkpoints: once a round, and once a burst of images.
    """
    causes: dict[int, dict[int, str]] = {}
    for rank, sample in fails.items():
        at = checkpoint_of_draw(whole, rank, sample)
        causes.setdefault(at, {})[rank] = f"BadRecord: sample {sample} of rank {rank} is damaged"
    for rank, number in spoils.items():
        at = whole.ranks.decodings[rank][number]
        causes.setdefault(at, {}).setdefault(rank, f"BadRecord: burst {number} of rank {rank} cannot be decoded")
    if not whole.job.everything:
        return None
    for at, steps in enumerate(whole.ranks.checkpoints[0]):
        left = frozenset(rank for rank, step in leaves.items() if steps >= step)
        if left or at in causes:
            return Stop(steps, left, causes.get(at, {}))
    return None


def checkpoint_of_draw(whole: Run, rank: int, sample: int) -> int:
    """At which checkpoint the round is told in which a rank draws this sample."""
    drawn = [number for number, _ in whole.ranks.packers[rank].at_round]
    number = max(number for number, before in enumerate(drawn) if before <= sample)
    of_bursts = set(whole.ranks.decodings[rank])
    return [at for at in range(len(whole.ranks.checkpoints[rank])) if at not in of_bursts][number]


@given(jobs(), st.data())
@settings(max_examples=150)
def test_all_ranks_stop_at_the_same_step_and_the_cause_is_named(job: Job, data: st.DataObject) -> None:
    """Fails with: an error raised where it happens; a loop's leaving ignored; another failed rank named."""
    whole = run(job)
    some_ranks = st.sets(st.integers(0, job.ranks - 1), max_size=2)
    leaves = {rank: data.draw(st.integers(0, len(whole.steps))) for rank in data.draw(some_ranks)}
    fails = {
        rank: data.draw(st.integers(0, len(job.streams[rank]) - 1))
        for rank in data.draw(some_ranks)
        if job.streams[rank]
    }
    check_stop(whole, leaves, fails, {})


@given(jobs(images=True, shortest=1), st.data())
@settings(max_examples=150)
def test_a_burst_that_a_rank_cannot_decode_is_cancelled_on_all(job: Job, data: st.DataObject) -> None:
    """And a loop that left is noticed between two bursts of a round.

    Fails with: a burst's gather without status, or without the bit of a loop that left; a rank that goes on after a
    burst that was cancelled.
    """
    whole = run(job)
    rank = data.draw(st.integers(0, job.ranks - 1))
    bursts = whole.ranks.decodings[rank]
    if bursts and data.draw(st.booleans()):
        check_stop(whole, {}, {}, {rank: data.draw(st.integers(0, len(bursts) - 1))})
    else:
        check_stop(whole, {rank: data.draw(st.integers(0, len(whole.steps)))}, {}, {})


def check_stop(whole: Run, leaves: dict[int, int], fails: dict[int, int], spoils: dict[int, int]) -> None:
    """Run the job with these failures: it must stop where, and only where, it should, with the right errors."""
    job = whole.job
    stop = expected_stop(whole, leaves, fails, spoils)
    ranks = Ranks(job, leaves=leaves, fails=fails, spoils=spoils)
    steps = list(ranks.steps())
    errors = ranks.lockstep.errors
    if stop is None:
        assert schedule(steps) == schedule(whole.steps)
        assert errors == {}
        return
    assert schedule(steps) == schedule(whole.steps[: stop.steps]), "what was agreed on stands, no more is delivered"
    assert set(errors) == set(range(job.ranks)) - stop.left
    for rank, error in errors.items():
        if job.ranks == 1:
            assert isinstance(error, BadRecord)
        else:
            check_message(error, rank, stop)


def check_message(error: Exception, rank: int, stop: Stop) -> None:
    """A PeerError that tells who, when and why."""
    assert type(error) is PeerError
    assert (f"after step {stop.steps - 1}" if stop.steps else "before the first step") in str(error)
    if stop.causes:
        first = min(stop.causes)
        assert f"rank {first} failed" in str(error)
        assert stop.causes[first] in str(error)
        assert isinstance(error.__cause__, BadRecord) == (rank in stop.causes)
    else:
        assert f"rank {min(stop.left)} left its loop early" in str(error)


@pytest.mark.parametrize(("samples", "left_at"), [(0, 0), (2, 1), (2, 2)])
def test_no_failure_after_the_end(samples: int, left_at: int) -> None:
    """A rank that leaves once every step was agreed on disturbs nobody: the end is looked at first.

    Fails with: failed and closing looked at before the end.
    """
    ranks = Ranks(Job(streams=((Size(16),) * samples,) * 3, lookahead=5), leaves={1: left_at})
    assert len(list(ranks.steps())) == samples
    assert ranks.lockstep.errors == {}


def test_a_rank_that_fails_and_leaves_hears_nothing() -> None:
    ranks = Ranks(Job(streams=((Size(16),) * 9,) * 2), leaves={0: 2}, fails={0: 6})
    steps = list(ranks.steps())
    assert len(steps) == 2
    assert list(ranks.lockstep.errors) == [1]


@pytest.mark.parametrize("text", ["x" * 5000, "ß" * 3000])
def test_a_long_cause_is_cut(text: str) -> None:
    """A cause of any length fits the message, cut, even inside a character."""
    ranks = Ranks(Job(streams=((Size(16),) * 9,) * 2), fails={0: 0})
    ranks.packers[0].failure = BadRecord(text)
    assert list(ranks.steps()) == []
    message = str(ranks.lockstep.errors[1])
    assert message.startswith("rank 0 failed (epoch 0, before the first step): BadRecord: " + text[:900])
    assert len(message.encode()) < 2200
