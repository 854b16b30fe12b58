"""A7: endless streams, and epochs that end when all ranks together have emitted a quota."""

from dataclasses import replace
from itertools import islice

from alignment_support import Job, Ranks, Step, check_steps, jobs
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.batching.cost import Size
from odb_stream.batching.messages import MOST_DRY_ROUNDS
from odb_stream.errors import ConfigError

EPOCHS = 3


def run_epochs(job: Job, quota: int) -> tuple[Ranks, list[Step]]:
    """A few epochs of a job with endless streams: the ranks and all steps."""
    ranks = Ranks(replace(job, quota=quota))
    steps = []
    epochs = 0
    for step in islice(ranks.steps(), EPOCHS * quota):
        steps.append(step)
        epochs += step[0].ends_epoch
        if epochs == EPOCHS:
            break
    assert epochs == EPOCHS
    assert ranks.lockstep.errors == {}
    return ranks, steps


@given(jobs(shortest=1, broken=(0,)), st.integers(1, 60))
@settings(max_examples=150)
def test_each_epoch_ends_at_the_first_step_that_reaches_the_quota(job: Job, quota: int) -> None:
    """With A1, A3, A5 and A6: the overshoot is less than a step, nobody idles, the rest of the round opens the next
    epoch, and nothing is emitted twice or lost.

    Fails with: an epoch that ends one step late; an account that is not begun anew; the rest of the round given up.
    """
    ranks, steps = run_epochs(job, quota)
    check_steps(ranks.job, steps)
    before = place = 0
    for number, step in enumerate(steps):
        assert all(deliver.group for deliver in step)
        totals = step[0].totals
        assert before < quota
        assert totals.samples_seen == before + totals.samples
        assert step[0].ends_epoch == (totals.samples_seen >= quota)
        before = 0 if step[0].ends_epoch else totals.samples_seen
        same_round = number and steps[number - 1][0].state.round.number == step[0].state.round.number
        place = place + 1 if same_round else 0
        assert step[0].state.step.index == place
    for rank, packer in enumerate(ranks.packers):
        assert packer.planner.window.max_delay <= job.window
        emitted = [step[rank].group.samples for step in steps]
        assert len(set(emitted)) == len(emitted)
        assert set(emitted) <= set(packer.handed_out)
        assert 0 <= len(packer.handed_out) - len(emitted) < job.lookahead
        held = [(rank, ticket) for ticket in packer.planner.window.tickets()]
        planned = [sample for group in packer.handed_out for sample in group]
        assert sorted(held + planned) == [(rank, number) for number in range(packer.drawn)]


@given(jobs(shortest=1, broken=(0.2,)), st.integers(1, 40))
@settings(max_examples=100)
def test_broken_images_do_not_count_towards_the_quota(job: Job, quota: int) -> None:
    """Only what is emitted counts; a rank whose group breaks idles with a stand-in."""
    if len(job.broken) == len(job.everything):
        return
    ranks, steps = run_epochs(job, quota)
    check_steps(ranks.job, steps)
    emitted = [sample for step in steps for deliver in step if deliver.group for sample in deliver.group.samples]
    assert len(set(emitted)) == len(emitted)
    assert not any(map(ranks.job.is_broken, emitted))


def test_a_quota_that_nothing_can_fill_is_an_error_on_all_ranks() -> None:
    """Every image is broken: the run would never end. Fails with: dry rounds not counted."""
    job = Job(streams=((Size(9, images=1),) * 6,) * 2, quota=9)
    ranks = Ranks(replace(job, broken=frozenset(job.everything)))
    assert list(ranks.steps()) == []
    errors = list(ranks.lockstep.errors.values())
    assert [type(error) for error in errors] == [ConfigError] * 2
    assert all(f"{MOST_DRY_ROUNDS} rounds in a row emitted no sample" in str(error) for error in errors)
