"""The policies that we compare with: hand-traced cases, and that none loses a sample."""

from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.baselines import bmt, fixed, gmt, paper_groups, paper_window
from odb_stream.config import Budget

FOOTPRINT = Footprint("padded", Budget(12))
rank_lengths = st.lists(st.lists(st.integers(1, 12), max_size=30), min_size=1, max_size=4)


def everything(schedule):
    return sorted(length for step in schedule for group in step for length in group)


def test_fixed_takes_arrival_order_and_lets_short_ranks_idle():
    assert fixed([[1, 2, 3], [4]], 2) == [[[1, 2], [4]], [[3], []]]


def test_gmt_sorts_over_all_ranks():
    assert gmt([[6, 2], [4, 4]], FOOTPRINT) == [[[2, 4, 4], [6]]]


def test_bmt_keeps_arrival_order_inside_a_bucket():
    assert bmt([[6, 1, 5, 2]], FOOTPRINT, buckets=2) == [[[1, 2]], [[6, 5]]]


def test_paper_groups_follow_the_length_that_closed_the_group_before():
    # 6 closes at once; 12 // 6 = 2 members: 4 4, closed by 4; 12 // 4 = 3 members: 3 2 2, closed by 2; the rest is cut.
    assert paper_groups([4, 2, 6, 4, 2, 3, 1], FOOTPRINT) == [[6], [4, 4], [3, 2, 2], [1]]


def test_paper_window_drains_each_window():
    assert paper_window([[6, 4, 4, 6, 4, 4]], FOOTPRINT, window=3, slots=8) == [[[6]], [[4, 4]], [[6]], [[4, 4]]]


def test_paper_window_peels_and_recycles_to_a_common_count():
    schedule = paper_window([[6, 6, 1], [2, 2]], FOOTPRINT, window=3, slots=8)
    assert everything(schedule) == [1, 2, 2, 6, 6]
    assert all(len(step) == 2 for step in schedule)


@given(rank_lengths, st.integers(1, 9), st.integers(1, 5))
def test_no_policy_loses_or_repeats_a_sample(ranks, window, slots):
    expected = sorted(length for lengths in ranks for length in lengths)
    assert everything(fixed(ranks, 3)) == expected
    assert everything(gmt(ranks, FOOTPRINT)) == expected
    assert everything(bmt(ranks, FOOTPRINT, buckets=3)) == expected
    assert everything(paper_window(ranks, FOOTPRINT, window=window, slots=slots)) == expected


@given(rank_lengths)
def test_the_oracles_keep_the_budget(ranks):
    for schedule in (gmt(ranks, FOOTPRINT), bmt(ranks, FOOTPRINT, buckets=3)):
        assert all(FOOTPRINT.tokens(group) <= 12 for step in schedule for group in step if group)
