"""The cost rule: hand-computed cases, and the bound that everything else relies on."""

import pytest
from alignment_support import footprints, sizes
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Size
from odb_stream.config import Budget
from odb_stream.errors import ConfigError


def test_padded_counts_rows_times_the_rounded_longest_and_packed_the_rounded_sum():
    assert Footprint("padded", Budget(64), multiple=8).tokens([3, 9, 5]) == 3 * 16
    assert Footprint("packed", Budget(64), multiple=8).tokens([3, 9, 5]) == 24


def test_patches_and_samples_bound_a_group_too():
    footprint = Footprint("packed", Budget(100, patches=4, samples=2))
    assert footprint.feasible([Size(5, 2), Size(5, 2)])
    assert not footprint.feasible([Size(5, 2), Size(5, 3)])
    assert not footprint.feasible([Size(5), Size(5), Size(5)])
    # A sample may be oversize by rounding alone.
    assert not Footprint("padded", Budget(10)).oversize(Size(10))
    assert Footprint("padded", Budget(10), multiple=4).oversize(Size(9))


@given(footprints(), st.lists(sizes, min_size=1, max_size=8))
def test_a_part_of_a_feasible_group_is_feasible(footprint, group):
    if footprint.feasible(group):
        assert all(footprint.feasible(group[:i] + group[i + 1 :]) for i in range(len(group)) if len(group) > 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", 0), ("tokens", -5), ("tokens", 1.5), ("tokens", True), ("patches", 0), ("samples", 0)],
)
def test_a_budget_names_the_field_that_cannot_be(field, value):
    with pytest.raises(ConfigError, match=rf"Budget\.{field}.*{value}"):
        Budget(**{"tokens": 8, field: value})
