"""The simulation: definitions of its figures, and what it refuses."""

import pytest

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import deal, simulate
from odb_stream.config import Budget
from odb_stream.errors import ConfigError


def footprint(layout="padded", tokens=16_384, multiple=1):
    return Footprint(layout, Budget(tokens), multiple)


def test_deal_round_robin_and_by_shares():
    assert deal([1, 2, 3, 4, 5], 2) == [[1, 3, 5], [2, 4]]
    assert deal([1, 2, 3, 4], 3, [1, 1, 2]) == [[1], [2], [3, 4]]
    assert deal([1, 2], 3, [0, 0, 1]) == [[], [], [1, 2]]


def test_figures_of_a_schedule_counted_by_hand():
    figures = simulate([[4, 2, 4], [6]], policy="fixed", footprint=footprint(tokens=8), batch_size=2)
    # Steps: [4 2 | 6], [4 | idle]; padded 8 + 6 + 4, critical 8 + 4, real 16.
    assert (figures.steps, figures.emitted, figures.idle_steps) == (2, 4, 1)
    assert figures.padding_ratio == pytest.approx(1 - 16 / 18)
    assert figures.critical_ratio == pytest.approx(12 / 8)
    assert figures.real_utilisation == pytest.approx(16 / (2 * 2 * 8))
    assert figures.over_budget_groups == 0


def test_over_budget_groups_are_counted_where_a_policy_ignores_the_budget():
    assert simulate([[5, 5, 5]], policy="fixed", footprint=footprint(tokens=8), batch_size=3).over_budget_groups == 1


def test_a_sample_over_the_budget_is_dropped_and_counted():
    figures = simulate([[9, 3]], policy="anchored", footprint=footprint(tokens=8))
    assert (figures.emitted, figures.dropped) == (1, 1)


@pytest.mark.parametrize("policy", ["anchored", "paper-window", "fixed", "gmt", "bmt"])
def test_no_samples_is_no_step(policy):
    figures = simulate([[], []], policy=policy, footprint=footprint())
    assert (figures.world_size, figures.steps, figures.emitted, figures.critical_ratio) == (2, 0, 0, 0.0)


@pytest.mark.parametrize("field", ["window", "lookahead", "batch_size"])
def test_settings_below_one_are_refused_by_name(field):
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        simulate([[1]], policy="anchored", footprint=footprint(), **{field: 0})


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ConfigError, match="policy is 'best'"):
        simulate([[1]], policy="best", footprint=footprint())
    with pytest.raises(ConfigError, match="lengths hold 0"):
        simulate([[3, 0]], policy="anchored", footprint=footprint())
    with pytest.raises(ConfigError, match="shares has 1 entries for world_size 2"):
        deal([1], 2, [1])
    with pytest.raises(ConfigError, match="every share must be at least 0"):
        deal([1], 2, [1, -1])
