"""The packing stage: against a brute-force reference, its bounds, and its cost in operations.

And the tail: each division is complete and feasible; padded it has the least cost, packed its rows are of like size.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from alignment_support import footprints, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.window import GROUP_SHARE, Planner, Window, final_groups, ramp
from odb_stream.config import Budget


def plan_all(stream: list[Size], footprint: Footprint, *, window: int, lookahead: int = 4):
    """All groups of a stream, and the planner."""
    source: Iterator[tuple[int, Size]] = iter(list(enumerate(stream)))
    planner = Planner(footprint, lambda: next(source, None), window=window, lookahead=lookahead)
    groups = []
    number = 0
    while not planner.exhausted:
        planner.begin_round(number)
        groups += [group for _ in range(planner.lookahead) if (group := planner.form_group()) is not None]
        number += 1
    return groups, planner


def best_padded_run(held: dict[int, Size], anchor: int, footprint: Footprint) -> int:
    """Most real tokens of any feasible contiguous run with the anchor, by trying all."""
    order = sorted(held, key=lambda ticket: (held[ticket].length, ticket))
    best = 0
    for start in range(len(order)):
        for stop in range(start + 1, len(order) + 1):
            run = order[start:stop]
            if anchor in run and footprint.feasible(held[t] for t in run):
                best = max(best, sum(held[t].length for t in run))
    return best


def greedy_fill(held: dict[int, Size], anchor: int, footprint: Footprint) -> list[int]:
    """The packed rule written out: the anchor, then the longest that fits, the oldest of equals."""
    members = [anchor]
    rest = sorted((t for t in held if t != anchor), key=lambda t: (-held[t].length, t))
    while True:
        fitting = next((t for t in rest if footprint.feasible(held[m] for m in [*members, t])), None)
        if fitting is None:
            return sorted(members)
        members.append(fitting)
        rest.remove(fitting)


@given(st.data())
@settings(max_examples=300)
def test_each_group_is_the_one_the_rule_names(data):
    footprint = data.draw(footprints())
    stream = [size for size in data.draw(streams) if not footprint.oversize(size)]
    window = Window(footprint)
    held: dict[int, Size] = {}
    capacity = data.draw(st.integers(1, 12))
    tickets = iter(enumerate(stream))
    while True:
        while len(held) < capacity and (item := next(tickets, None)) is not None:
            held[item[0]] = item[1]
            window.admit(*item)
        if not held:
            break
        anchor = min(held)
        group = window.form_group()
        assert group[0] == anchor
        if footprint.layout == "packed":
            assert group == greedy_fill(held, anchor, footprint)
        else:
            assert sum(held[t].length for t in group) == best_padded_run(held, anchor, footprint)
        for ticket in group:
            del held[ticket]


@given(st.data())
@settings(max_examples=300)
def test_every_sample_leaves_once_within_the_budget_and_the_delay(data):
    footprint, stream = data.draw(footprints()), data.draw(streams)
    window = data.draw(st.integers(1, 80))
    groups, planner = plan_all(stream, footprint, window=window)
    assert sorted(ticket for group in groups for ticket in group) == list(range(len(stream)))
    for group in groups:
        alone = len(group) == 1 and footprint.oversize(stream[group[0]])
        assert alone or footprint.feasible(stream[ticket] for ticket in group)
    assert planner.window.max_delay <= window


def test_the_docstring_trace():
    groups, _ = plan_all([Size(n) for n in (5, 2, 3, 6, 4, 4)], Footprint("padded", Budget(12)), window=4)
    assert groups == [[0, 3], [1, 2, 4], [5]]


def test_an_oversize_sample_leaves_alone_and_breaks_no_run():
    footprint = Footprint("padded", Budget(20, patches=3))
    groups, _ = plan_all([Size(4), Size(4, 9), Size(4), Size(40), Size(4)], footprint, window=8)
    assert groups == [[0, 2, 4], [1], [3]]


def test_ramps_double_up_to_the_limit():
    assert [ramp(1000, 64, number) for number in range(6)] == [64, 128, 256, 512, 1000, 1000]
    assert ramp(5, 64, 0) == 5
    assert ramp(1000, 64, 10**9) == 1000


def test_the_first_round_reads_only_the_first_window():
    drawn = 0

    def draw():
        nonlocal drawn
        drawn += 1
        return drawn, Size(10)

    planner = Planner(Footprint("padded", Budget(100)), draw, window=4096, lookahead=128)
    planner.begin_round(0)
    planner.form_group()
    assert drawn == 256 + 10  # the first window, and its refill after a group of ten


def test_an_empty_window_means_an_exhausted_rank_right_after_the_last_group():
    source = iter([(0, Size(5)), (1, Size(5))])
    planner = Planner(Footprint("padded", Budget(10)), lambda: next(source, None), window=2, lookahead=8)
    planner.begin_round(0)
    assert planner.form_group() == [0, 1]
    assert planner.exhausted
    assert planner.form_group() is None


class Counted(int):
    """A length that counts how often it is compared: the cost of planning, free of clocks."""

    comparisons = 0

    def __lt__(self, other):
        Counted.comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other):
        Counted.comparisons += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_planning_cost_does_not_grow_with_the_window(layout):
    lengths = [16 + (i * 7919) % 1500 for i in range(6000)]

    def comparisons(window):
        Counted.comparisons = 0
        plan_all([Size(Counted(n)) for n in lengths], Footprint(layout, Budget(16384)), window=window, lookahead=128)
        return Counted.comparisons / len(lengths)

    assert comparisons(2048) < 2 * comparisons(128)


lengths = st.lists(st.integers(1, 24), min_size=1, max_size=9).map(sorted)
budgets = st.builds(
    Budget,
    st.integers(24, 80),
    patches=st.one_of(st.none(), st.integers(4, 9)),
    samples=st.one_of(st.none(), st.integers(1, 5)),
)


@st.composite
def instances(draw: st.DrawFn, layout: str) -> tuple[list[Size], Footprint]:
    """Sorted sizes, none over the budget, and the rule."""
    sizes = [Size(length, draw(st.integers(0, 4))) for length in draw(lengths)]
    return sizes, Footprint(layout, draw(budgets), draw(st.integers(1, 4)))


def cost(groups: list[list[int]], sizes: list[Size], footprint: Footprint) -> int:
    tokens = sum(footprint.tokens([sizes[place].length for place in group]) for group in groups)
    return tokens + len(groups) * (footprint.budget.tokens // GROUP_SHARE)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@given(data=st.data())
def test_a_division_is_complete_and_feasible(layout: str, data: st.DataObject) -> None:
    sizes, footprint = data.draw(instances(layout))
    groups = final_groups(sizes, footprint)
    assert sorted(place for group in groups for place in group) == list(range(len(sizes)))
    assert all(footprint.feasible([sizes[place] for place in group]) for group in groups)


@given(instances("padded"))
def test_no_cut_of_the_sorted_samples_costs_less(instance: tuple[list[Size], Footprint]) -> None:
    """All cuts into runs, tried one by one."""
    sizes, footprint = instance
    size, least = len(sizes), None
    for number in range(size):
        for cuts in combinations(range(1, size), number):
            groups = [list(range(*ends)) for ends in pairwise((0, *cuts, size))]
            if all(footprint.feasible([sizes[place] for place in group]) for group in groups):
                tried = cost(groups, sizes, footprint)
                least = tried if least is None else min(least, tried)
    assert cost(final_groups(sizes, footprint), sizes, footprint) == least


def test_rows_are_of_like_size_and_no_more_than_needed() -> None:
    sizes = [Size(length) for length in sorted([9, 8, 7, 6, 5, 4, 3, 2, 1] * 3)]
    groups = final_groups(sizes, Footprint("packed", Budget(100)))
    assert sorted(sum(sizes[place].length for place in group) for group in groups) == [67, 68]


def test_rows_that_only_fit_filled_up_are_left_so() -> None:
    """5 4 3 3 3 into two rows of 9: level would be 5 3 and 4 3, and the last 3 fits nowhere."""
    sizes = [Size(length) for length in (3, 3, 3, 4, 5)]
    groups = final_groups(sizes, Footprint("packed", Budget(9)))
    assert sorted(sorted(sizes[place].length for place in group) for group in groups) == [[3, 3, 3], [4, 5]]


def test_the_trace_in_the_module_holds() -> None:
    groups = final_groups([Size(1), Size(1), Size(4), Size(6)], Footprint("padded", Budget(12)))
    assert sorted(groups) == [[0, 1], [2], [3]]


def test_a_planner_divides_what_is_left_at_the_end_as_a_whole() -> None:
    """Window 6, and only 7 samples: the first group leaves 5 of them, and no more come.

    One at a time, 1 would take the run of most real tokens, [1 1 4] of 12; divided as a whole, [1 1] leaves alone.
    """
    arrivals = iter(enumerate([Size(length) for length in (6, 1, 4, 1, 6, 6, 6)]))
    planner = Planner(Footprint("padded", Budget(12)), lambda: next(arrivals, None), window=6, lookahead=8)
    planner.begin_round(0)
    groups = []
    while (group := planner.form_group()) is not None:
        groups.append(group)
    assert groups == [[0, 4], [1, 3], [2], [5, 6]]
    assert planner.window.max_delay == 4
