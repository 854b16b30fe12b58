"""Rates, ratios and the verdict, exact: from a scripted loader and a clock that is moved by hand."""

import json

import pytest
from live_support import Clock, Script, tree

import odb_stream as odb
from odb_stream.live import LiveView
from odb_stream.live.verdict import verdict_of


def close(expected):
    return pytest.approx(expected, abs=1e-9)


def test_rates_are_computed_since_the_start_and_recently():
    clock, loader = Clock(), Script()
    loader.step(7, 700, 800)  # before the view began: counts in the totals only
    live = LiveView(loader, clock=clock)
    for _ in range(10):  # a slow time: one step in 2 s
        clock.now += 2
        loader.step(10, 500, 1000)
        live.figures()
    for _ in range(10):  # a fast one: one step a second, fuller
        clock.now += 1
        loader.step(20, 900, 1000)
        figures = live.figures()
    assert (figures["steps"], figures["samples"], figures["tokens"], figures["padded_tokens"]) == (
        21, 307, 14_700, 20_800,
    )  # fmt: skip
    assert figures["seconds"] == close(30)
    overall, recent = figures["overall"], figures["recent"]
    # In the order of SPAN: seconds, steps, rates of samples, tokens and padded tokens, padding, utilisation.
    assert [overall[name] for name in SPAN] == close([30, 20, 10, 14_000 / 30, 20_000 / 30, 0.3, 0.7])
    assert [recent[name] for name in SPAN] == close([5, 5, 20, 900, 1000, 0.1, 0.9])


def test_looks_may_be_rare_or_see_the_same_time():
    """Recent is then the last interval, and no elapsed time gives no division by zero."""
    clock, loader = Clock(), Script()
    live = LiveView(loader, clock=clock)
    assert live.figures()["verdict"] == "no step was made yet"
    loader.step(1, 10, 10)
    figures = live.figures()
    assert (figures["recent"]["samples_per_second"], figures["recent"]["wait_share"]["trainer"]) == (0.0, 0.0)
    assert (figures["global"]["overall"]["imbalance"], figures["trainer_waits_for"]) == (1.0, None)
    for samples in (10, 30):
        clock.now += 60
        loader.step(samples, 500, 500)
        figures = live.figures()
    assert (figures["recent"]["seconds"], figures["recent"]["samples_per_second"]) == close((60, 0.5))
    clock.now += 0.001  # a look just after another: the recent span does not shrink to a moment
    assert live.figures()["recent"]["seconds"] == close(60.001)


def test_figures_of_all_ranks_and_the_imbalance_between_them():
    clock, loader = Clock(), Script(rank=1, ranks=2)
    live = LiveView(loader, clock=clock)
    clock.now += 10
    loader.step(1, 400, 1000, others=((3, 800, 1000),))  # even
    live.figures()
    clock.now += 5
    loader.step(1, 500, 500, others=((3, 900, 1000),))
    loader.dropped, loader.dropped_of_all = {"too_long": 1}, {"too_long": 3, "empty": 1}
    figures = live.figures()
    everyone, recent, overall = figures["global"], figures["global"]["recent"], figures["global"]["overall"]
    assert (figures["rank"], figures["ranks"], figures["samples"], everyone["samples"]) == (1, 2, 2, 8)
    assert (figures["dropped"], everyone["dropped"]) == ({"too_long": 1}, {"too_long": 3, "empty": 1})
    assert (recent["imbalance"], overall["imbalance"]) == close((1000 / 750, 2000 / 1750))
    assert (recent["utilisation"], recent["padding"]) == close((1400 / 2000, 100 / 1500))
    assert overall["samples_per_second"] == close(8 / 15)
    assert figures["recent"]["utilisation"] == close(0.5)


def test_waits_are_given_by_stage_in_seconds_and_shares():
    clock, loader = Clock(), Script()
    loader.waits["trainer"] = 30.0  # before the view began
    live = LiveView(loader, clock=clock)
    clock.now += 10
    loader.step(1, 10, 10)
    loader.waits |= {"trainer": 31.0, "room": 8.0}
    live.figures()
    clock.now += 10
    loader.step(1, 10, 10)
    loader.waits |= {"trainer": 36.0, "workers": 4.0, "read": 0.5, "peers": 0.25}
    figures = live.figures()
    overall, recent = figures["overall"], figures["recent"]
    assert overall["wait_seconds"] == close({"trainer": 6.0, "workers": 4.0, "read": 0.5, "peers": 0.25, "room": 8.0})
    assert recent["wait_share"] == close({"trainer": 0.5, "workers": 0.4, "read": 0.05, "peers": 0.025, "room": 0.0})
    assert figures["trainer_waits_for"] == "workers"
    assert figures["verdict"].startswith("the trainer waits for data: 50.0% of the last 10.0 s, mostly for the workers")


VERDICTS = {
    "fed": ({"trainer": 0.049, "room": 0.9}, None, "data wait for the trainer: it waited 4.9% of the last 4.0 s"),
    "fed though workers are slow": ({"trainer": 0.0, "workers": 0.9}, None, "data wait for the trainer"),
    "just not fed": ({"trainer": 0.05, "workers": 0.05}, "workers", "the trainer waits for data: 5.0% of the last"),
    "workers": ({"trainer": 0.5, "workers": 0.3, "read": 0.1}, "workers", "mostly for the workers, which run"),
    "read": ({"trainer": 0.5, "workers": 0.1, "read": 0.3}, "read", "mostly for records to be read"),
    "peers": ({"trainer": 0.5, "peers": 0.45}, "peers", "mostly for other ranks"),
    "packing": ({"trainer": 0.9, "workers": 0.2, "read": 0.1}, "packing", "mostly for packing and collating"),
    "waits that fall into other times too": ({"trainer": 0.1, "workers": 0.5, "read": 0.2}, "workers", "workers"),
}


@pytest.mark.parametrize(("share", "cause", "words"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_says_who_waits_for_whom(share, cause, words):
    found, line = verdict_of({"steps": 3, "seconds": 4.0, "wait_share": share})
    assert found == cause
    assert words in line
    nothing = {"steps": 0, "seconds": 7.0, "wait_share": share}
    assert verdict_of(nothing) == (None, "no step was made of late")


def test_figures_start_over_when_another_state_was_loaded():
    """An earlier state is noticed by its fewer steps; after a later one the caller restarts the view."""
    clock, loader = Clock(), Script()
    live = LiveView(loader, clock=clock)
    for _ in range(3):
        loader.step(10, 100, 100)
    clock.now += 1
    live.figures()
    loader.mine = loader.everyone = [1, 10, 100, 100, 100]  # the state after the first step
    clock.now += 1
    assert live.figures()["overall"]["samples_per_second"] == 0.0
    loader.step(10, 100, 100)
    clock.now += 2
    figures = live.figures()
    assert (figures["overall"]["samples_per_second"], figures["seconds"], figures["samples"]) == close((5, 2, 20))
    clock.now += 50
    loader.mine = loader.everyone = [1000, 10_000, 100_000, 100_000, 100_000]
    live.restart()
    loader.step(10, 100, 100)
    clock.now += 2
    figures = live.figures()
    assert (figures["overall"]["samples_per_second"], figures["seconds"], figures["steps"]) == close((5, 2, 1001))


SPAN = {
    "seconds": "float", "steps": "int", "samples_per_second": "float", "tokens_per_second": "float",
    "padded_tokens_per_second": "float", "padding": "float", "utilisation": "float",
}  # fmt: skip
STAGES = dict.fromkeys(("trainer", "workers", "read", "peers", "room"), "float")
TOTALS = {"samples": "int", "tokens": "int", "padded_tokens": "int", "dropped": {"too_long": "int"}}
HERE = {**SPAN, "wait_seconds": STAGES, "wait_share": STAGES}
EVERYWHERE = {**SPAN, "imbalance": "float"}


def test_a_real_loader_gives_every_documented_figure_fit_for_json():
    """Fails with: a report and a view that differ. The sums are those of the report."""
    items = [{"input_ids": [1] * (2 + number % 5)} for number in range(40)]
    pipeline = odb.Pipeline(odb.FromDataset(items), drop_the_first)
    with odb.Loader(pipeline, budget=odb.Budget(12)) as loader, LiveView(loader) as live:
        for _ in loader:
            live.update(2.5)
        figures, report = live.figures(), loader.report()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert tree(figures) == {
        "seconds": "float", "rank": "int", "ranks": "int", "steps": "int", "loss": "float", **TOTALS,
        "recent": HERE, "overall": HERE, "global": {**TOTALS, "recent": EVERYWHERE, "overall": EVERYWHERE},
        "trainer_waits_for": "str" if figures["trainer_waits_for"] else "NoneType", "verdict": "str",
    }  # fmt: skip
    assert (figures["samples"], figures["dropped"], figures["steps"]) == (39, {"too_long": 1}, report["steps"])
    assert figures["overall"]["padding"] == close(report["padding_ratio"])
    assert figures["overall"]["utilisation"] == close(report["real_utilisation"])
    assert figures["global"]["overall"]["imbalance"] == close(1.0)


def drop_the_first(sample):
    return odb.Drop("too_long") if sample.ref.index == 0 else sample
