"""Bursts: steps with images are decoded after planning; broken samples leave before the counts are exchanged."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import BYTES, Counts, Footprint, Group, Size, table
from odb_stream.batching.deal import BURST_SHARE, burst_ends
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.window import GroupPlanner
from odb_stream.config import Budget
from odb_stream.errors import PeerError, StageError

FOOTPRINT = Footprint("packed", Budget(20))
sizes = st.builds(Size, st.integers(1, 20), st.integers(0, 3), st.integers(1, 5), st.integers(1, 30), st.integers(0, 2))
ranks_of_sizes = st.lists(st.lists(sizes, max_size=20), min_size=1, max_size=4)


class Packer(GroupPlanner):
    """A stream of (rank, number) samples."""

    def __init__(self, rank: int, stream: list[Size]) -> None:
        self._rank, self._sizes, self._tickets = rank, stream, iter(enumerate(stream))
        super().__init__(FOOTPRINT, window=8, lookahead=4)

    def draw(self) -> tuple[int, Size] | None:
        return next(self._tickets, None)

    def take(self, tickets: list[int]) -> Group:
        return Group.of(tuple((self._rank, t) for t in tickets), tuple(self._sizes[t] for t in tickets), FOOTPRINT)


def lockstep(streams, decode, *, most_bytes=200, rebalance=True) -> Lockstep:
    return Lockstep(
        [
            Program(
                rank=rank, ranks=len(streams), groups=Packer(rank, stream), footprint=FOOTPRINT, seed=0, epoch=0,
                most_bytes=most_bytes, rebalance=rebalance,
            )
            for rank, stream in enumerate(streams)
        ],
        decode,
    )  # fmt: skip


def without(broken):
    """A decoding in which these samples prove broken."""

    def one(group):
        if group is None:
            return None
        kept = tuple(place for place, sample in enumerate(group.samples) if sample not in broken)
        return group.part(kept, FOOTPRINT) if kept else None

    return lambda _, groups, first: [one(group) for group in groups]


@given(ranks_of_sizes, st.data())
def test_broken_samples_leave_and_the_rest_is_emitted_once(streams, data):
    pictured = [(rank, i) for rank, stream in enumerate(streams) for i, size in enumerate(stream) if size.images]
    broken = data.draw(st.sets(st.sampled_from(pictured))) if pictured else set()
    run = lockstep(streams, without(broken), rebalance=data.draw(st.booleans()))
    emitted = Counter()
    for number, step in enumerate(run.steps()):
        counts = table([d.group.counts if d.group else Counts() for d in step], len(step), len(Counts._fields))
        assert {deliver.totals.step for deliver in step} == {number}
        assert {deliver.totals.samples for deliver in step} == {int(counts[:, 0].sum())}
        assert counts[:, 0].any(), "a step on which no rank emits is skipped"
        emitted.update(sample for deliver in step if deliver.group for sample in deliver.group.samples)
    assert not run.errors
    # Broken samples that share no burst with an image were never decoded: every pictured sample does.
    expected = {(rank, i) for rank, stream in enumerate(streams) for i in range(len(stream))} - broken
    assert emitted == Counter(expected)


@given(st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=2, max_size=2), max_size=12))
def test_no_rank_decodes_more_than_its_share_at_once(rows):
    counts = table([], len(rows) * 2, len(Counts._fields)).reshape(len(rows), 2, len(Counts._fields))
    for step, row in enumerate(rows):
        for rank, (size, images) in enumerate(row):
            counts[step, rank, BYTES], counts[step, rank, -1] = size, images
    ends = burst_ends(counts, 50)
    spans = [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    assert [step for span in spans for step in range(span.start, span.stop)] == list(range(len(rows)))
    if any(images for row in rows for _, images in row):
        for span in spans:
            assert span.stop - span.start == 1 or (counts[span][..., BYTES].sum(axis=0) <= 50).all()
    else:
        assert len(spans) <= 1


def test_a_failure_in_a_burst_cancels_it_on_all_ranks():
    stream = [Size(20, 1, 1, 25, 1)] * 12
    calls = Counter()

    def decode(rank, groups, first):
        calls[rank] += 1
        return StageError("no more memory") if rank == 1 and calls[rank] == 3 else groups

    run = lockstep([stream, stream], decode, most_bytes=50 * BURST_SHARE)
    steps = list(run.steps())
    assert len(steps) == 4, "two bursts of two steps each were agreed on before"
    assert set(run.errors) == {0, 1}
    for error in run.errors.values():
        assert isinstance(error, PeerError)
        assert "rank 1 failed (epoch 0, after step 3): StageError: no more memory" in str(error)


def test_a_rank_that_leaves_between_bursts_stops_all_at_the_same_step():
    stream = [Size(20, 1, 1, 25, 1)] * 12
    run = lockstep([stream, stream], lambda _, groups, first: groups, most_bytes=50 * BURST_SHARE)
    gone = []
    run.programs[0].closing = lambda: bool(gone)
    steps = []
    for step in run.steps():
        steps.append(step)
        if len(steps) == 3:
            gone.append(True)
    assert len(steps) == 4
    assert list(run.errors) == [1]
    assert "rank 0 left its loop early" in str(run.errors[1])


class Endless(Packer):
    """The same stream over and over."""

    def __init__(self, rank: int, stream: list[Size]) -> None:
        super().__init__(rank, stream * 5000)


def test_a_quota_that_nothing_can_fill_is_an_error_on_all_ranks():
    stream = [Size(9, 1, 1, 9, 1)] * 6
    programs = [
        Program(rank=rank, ranks=2, groups=Endless(rank, stream), footprint=FOOTPRINT, seed=0, epoch=0, quota=9)
        for rank in range(2)
    ]
    run = Lockstep(programs, lambda _, groups, first: [None] * len(groups))
    assert list(run.steps()) == []
    assert set(run.errors) == {0, 1}
    assert all("closure is 'quota', but 32 rounds in a row emitted no sample" in str(e) for e in run.errors.values())


@pytest.mark.parametrize("rebalance", [True, False])
def test_a_rank_whose_whole_stream_is_broken_idles_with_a_lent_sample(rebalance):
    streams = [[Size(18, 1, 1, 25, 1)] * 4, [Size(9, 0, 1, 9, 0)] * 8]
    run = lockstep(streams, without({(0, i) for i in range(4)}), rebalance=rebalance)
    steps = list(run.steps())
    assert not run.errors
    assert sum(deliver.totals.samples for deliver, _ in steps) == 8
    assert all(deliver.group or deliver.filler for step in steps for deliver in step)
