"""A run that stops after any step and goes on makes the very steps that would have come: all ranks in one process."""

from dataclasses import replace
from itertools import islice

import pytest
from alignment_support import Job, Ranks, Run, check_steps, jobs, run, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.batching.cost import Size
from odb_stream.errors import StateError


def rest(job: Job, place: list) -> tuple[list, Ranks]:
    """The steps after a place, by fresh programs and packing stages."""
    ranks = Ranks(job, begin=place)
    steps = list(ranks.steps())
    assert ranks.lockstep.errors == {}
    return steps, ranks


def every_cut(job: Job) -> Run:
    """The whole run, of which each step is a place to go on."""
    whole = run(job)
    for cut, step in enumerate(whole.steps):
        steps, _ = rest(job, [deliver.state for deliver in step])
        assert schedule(steps) == schedule(whole.steps[cut + 1 :])
    return whole


@given(jobs(), st.data())
@settings(max_examples=200)
def test_a_prefix_and_what_follows_its_state_are_the_whole_run(job: Job, data: st.DataObject) -> None:
    """Steps, totals, stand-ins, drops and all later states. Fails with: a stand-in not kept; what broke in a burst
    counted when it is decoded; the surplus forgotten; waits or rounds begun anew; moved groups not sent again."""
    whole = run(job)
    if not whole.steps:
        return
    cut = data.draw(st.integers(0, len(whole.steps) - 1))
    steps, ranks = rest(job, [deliver.state for deliver in whole.steps[cut]])
    assert schedule(steps) == schedule(whole.steps[cut + 1 :])
    for packer, uncut in zip(ranks.packers, whole.ranks.packers, strict=True):
        assert packer.dropped == uncut.dropped
        assert packer.planner.window.max_delay == uncut.planner.window.max_delay


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("rebalance", [False, True])
def test_every_step_of_an_uneven_job_is_a_place_to_go_on(images: bool, rebalance: bool) -> None:
    """Steady rounds, drain, last round: rank 1 has no data and rank 2 little, so groups move and samples are lent."""
    streams = [[Size(1 + (7 * i) % 9, 0, 1, 9, int(images and i % 2)) for i in range(n)] for n in (40, 0, 3)]
    broken = frozenset((0, i) for i in range(0, 40, 3)) if images else frozenset()
    job = Job(tuple(map(tuple, streams)), rebalance=rebalance, most_bytes=200, broken=broken)
    whole = every_cut(job)
    assert len(whole.steps) > 4
    moved = any(deliver.state.round.sent for step in whole.steps for deliver in step)
    lent = any(deliver.state.step.lent for deliver in whole.steps[-1])
    assert moved == rebalance
    assert lent or rebalance


def test_a_borrower_that_emits_a_smaller_sample_of_its_own_needs_the_loan_no_more() -> None:
    """Rank 1 idles first, as its sample breaks, and borrows. The lender still lists the loan."""
    image, text = Size(3, 0, 1, 9, 1), Size(2)
    job = Job(((Size(5),) * 6, (image, *[text] * 5)), window=1, lookahead=1, broken=frozenset({(1, 0)}))
    lender, borrower = (deliver.state.step for deliver in every_cut(job).steps[-1])
    assert list(lender.lent) == [1]
    assert borrower.borrowed_from is None


@given(jobs(shortest=1, broken=(0, 0.1)), st.data())
@settings(max_examples=60)
def test_a_run_with_a_quota_goes_on_over_the_ends_of_its_epochs(job: Job, data: st.DataObject) -> None:
    job = replace(job, quota=data.draw(st.integers(1, 30)))
    uncut = Ranks(job)
    stream = uncut.steps()
    prefix = list(islice(stream, data.draw(st.integers(1, 20))))
    if not prefix:
        return
    following = list(islice(stream, 12))
    again = Ranks(job, begin=[deliver.state for deliver in prefix[-1]])
    assert schedule(list(islice(again.steps(), len(following)))) == schedule(following)


@given(jobs(), st.data())
@settings(max_examples=60)
def test_going_on_twice_is_going_on_once(job: Job, data: st.DataObject) -> None:
    whole = run(job)
    if len(whole.steps) < 2:
        return
    first = data.draw(st.integers(0, len(whole.steps) - 2))
    second = data.draw(st.integers(first + 1, len(whole.steps) - 1))
    steps, _ = rest(job, [deliver.state for deliver in whole.steps[first]])
    again, _ = rest(job, [deliver.state for deliver in steps[second - first - 1]])
    assert schedule(again) == schedule(whole.steps[second + 1 :])


def test_ranks_at_different_steps_are_refused_by_all() -> None:
    job = Job(((Size(3),) * 20, (Size(4),) * 20))
    whole = run(job)
    check_steps(job, whole.steps)
    ranks = Ranks(job, begin=[whole.steps[1][0].state, whole.steps[2][1].state])
    assert list(ranks.steps()) == []
    for rank, error in ranks.lockstep.errors.items():
        assert isinstance(error, StateError)
        assert f"rank {rank} continues" in str(error)
        assert "rank 1" in str(error)
    fresh = Ranks(job, begin=[whole.steps[1][0].state, None])
    assert list(fresh.steps()) == []
    assert "at the start of epoch 0" in str(fresh.lockstep.errors[0])
