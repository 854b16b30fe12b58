"""The tail: each division is complete and feasible; padded it has the least cost, packed its rows are of like size."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.window import GROUP_SHARE, Planner, final_groups
from odb_stream.config import Budget

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
