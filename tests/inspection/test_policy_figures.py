"""Policies are compared by the simulation itself, on lengths drawn by a rule; suggestions follow their own rules."""

from dataclasses import dataclass, field

import pytest
from inspection_data import drop_fifth, pipeline, some_lengths

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import deal, simulate
from odb_stream.config import Budget, World
from odb_stream.errors import ConfigError
from odb_stream.inspection import inspect, policies
from odb_stream.inspection.policies import LOOKAHEADS, WINDOWS, lengths_of_an_epoch, suggest_lookahead, suggest_window


def test_lengths_are_drawn_up_to_the_epoch_and_no_further():
    few = [3, 5, 9]
    assert lengths_of_an_epoch(few, 3, 0) is few
    assert lengths_of_an_epoch(few, 2, 0) is few
    drawn = lengths_of_an_epoch(few, 100, 0)
    assert (len(drawn), set(drawn)) == (100, {3, 5, 9})
    assert drawn == lengths_of_an_epoch(few, 100, 0) != lengths_of_an_epoch(few, 100, 1)
    assert len(lengths_of_an_epoch(few, 10**6, 0)) == len(lengths_of_an_epoch(few, None, 0)) == 20_000
    many = [7] * 20_001
    assert lengths_of_an_epoch(many, 10**6, 0) is many


def test_the_figures_are_those_of_the_simulation():
    settings = {"window": 32, "lookahead": 16, "batch_size": 3}
    given = pipeline(some_lengths(300), drop_fifth)
    found = inspect(given, samples=100, budget=2_000, world_size=4, seed=2, **settings)
    compared = found.policies
    assert (compared.measured, compared.redrawn) == (found.samples.kept, True)
    assert compared.lengths == round(300 * found.samples.kept / 100)
    measured = inspect(given, samples=None, budget=2_000, world_size=4, **settings)
    assert not measured.policies.redrawn
    order = [record.ref.index for record in given.source.reading(World(), seed=0, epoch=0).records()]
    kept = [some_lengths(300)[index] for index in order if index % 5 != 4]
    for figures in measured.policies.figures:
        footprint = Footprint(figures.layout, Budget(2_000))
        own = settings | ({"window": 256} if figures.policy == "paper-window" else {})
        assert figures == simulate(deal(kept, 4), policy=figures.policy, footprint=footprint, **own)
    assert [(figures.policy, figures.layout) for figures in compared.figures] == list(policies.COMPARED)


@dataclass
class Stub:
    """A simulator whose critical ratios are given by window or lookahead."""

    ratios: dict
    settings: object = field(default_factory=lambda: type("S", (), {"layout": "padded"}))

    def run(self, policy, layout, *, window=None, lookahead=None):
        assert (policy, layout) == ("anchored", "padded")
        ratio = self.ratios[lookahead or window]
        return type("F", (), {"critical_ratio": ratio, "steps": 10, "world_size": 2, "idle_steps": 0, "emitted": 80})


def test_the_smallest_window_within_half_a_per_cent_of_the_best_is_suggested():
    ratios = dict(zip(WINDOWS, (1.5, 1.2, 1.1049, 1.1001, 1.1, 1.1), strict=True))
    assert suggest_window(Stub(ratios), bytes_a_sample=1000, host_memory=10**9).value == 256
    ratios[256] = 1.1056
    found = suggest_window(Stub(ratios), bytes_a_sample=1000, host_memory=10**9)
    assert (found.value, found.fits) == (512, True)
    assert [point.host_bytes for point in found.curve] == [1000 * window for window in WINDOWS]


def test_host_memory_bounds_the_window():
    ratios = dict(zip(WINDOWS, (1.5, 1.2, 1.15, 1.12, 1.1, 1.0), strict=True))
    assert suggest_window(Stub(ratios), bytes_a_sample=1000, host_memory=512_000).value == 512
    nothing = suggest_window(Stub(ratios), bytes_a_sample=1000, host_memory=10)
    assert (nothing.value, nothing.fits) == (64, False)


def test_a_lookahead_holds_its_groups_in_addition_to_the_window():
    found = suggest_lookahead(Stub(dict.fromkeys(LOOKAHEADS, 1.0)), 100, bytes_a_sample=10, host_memory=10**9)
    assert found.value == LOOKAHEADS[0]
    assert [point.host_bytes for point in found.curve] == [10 * (100 + 4 * lookahead) for lookahead in LOOKAHEADS]


@pytest.mark.parametrize(
    "settings",
    [{"samples": 0}, {"window": 0}, {"world_size": 0}, {"budget": 0}, {"layout": "loose"}, {"seed": -1},
     {"host_memory": 0}, {"workers": -1}, {"batch_size": 0}, {"lookahead": 0}],
    ids=str,
)  # fmt: skip
def test_a_setting_out_of_range_is_named(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        inspect(pipeline(some_lengths(5)), **settings)


def test_only_a_pipeline_is_accepted():
    with pytest.raises(ConfigError, match="must be a Pipeline"):
        inspect(pipeline(some_lengths(5)).source)
