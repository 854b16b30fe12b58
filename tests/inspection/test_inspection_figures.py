"""The figures and pictures of an inspection: of lengths, images and policies; and the settings that it suggests."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection_data import FakeClock, drop_fifth, pipeline, some_lengths

import odb_stream as odb
from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import deal, simulate
from odb_stream.cli.recipes import build_pipeline
from odb_stream.inspection import inspect, policies, times
from odb_stream.inspection.collect import MOST_DECODED, Collected, collect, held_bytes
from odb_stream.inspection.figures import BINS, Histogram, Spread, Subset, Supervised
from odb_stream.inspection.pictures import COLOURED_SOURCES, all_pictures, coloured, png, svg
from odb_stream.inspection.policies import LOOKAHEADS, WINDOWS, lengths_of_an_epoch, suggest_lookahead, suggest_window
from odb_stream.inspection.times import DecodeTime, decode_time
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import Drop
from odb_stream.stages.images.files import measure

samples = st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60)


@given(samples)
def test_every_sample_is_in_the_bin_that_holds_its_length(drawn):
    lengths, sources, images = map(list, zip(*drawn, strict=True))
    collected = Collected(("a", "b", "c"), lengths=lengths, sources=sources, images=images)
    histogram = Histogram.of(collected)
    edges = histogram.edges
    assert 1 <= len(histogram.counts) <= BINS
    assert all(first < second for first, second in pairwise(edges))
    for count, (low, high) in zip(histogram.counts, pairwise(edges), strict=True):
        assert count == sum(low <= length < high for length in lengths)
    assert sum(histogram.counts) == len(lengths)
    for parts in (histogram.by_source, histogram.by_modality):
        assert [sum(column) for column in zip(*(part.counts for part in parts), strict=True)] == list(histogram.counts)
        assert sum(part.tokens for part in parts) == sum(lengths)
        assert sum(part.lengths.count for part in parts) == len(lengths)
    assert {part.name for part in histogram.by_source} == {"abc"[source] for source in sources}


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_a_spread_is_numpys(numbers):
    spread = Spread.of(numbers)
    assert spread.mean == pytest.approx(np.mean(numbers))
    assert (spread.min, spread.max, spread.count) == (min(numbers), max(numbers), len(numbers))
    assert spread.cv * spread.mean == pytest.approx(np.std(numbers))
    assert [spread.p5, spread.p50, spread.p99] == pytest.approx(np.percentile(numbers, [5, 50, 99]).tolist())


def test_bins_grow_where_lengths_span_much():
    near = Histogram.of(Collected(("a",), lengths=[100, 300, 900], sources=[0] * 3, images=[0] * 3))
    far = Histogram.of(Collected(("a",), lengths=[10, 300, 9000], sources=[0] * 3, images=[0] * 3))
    assert (near.scale, far.scale) == ("linear", "log")


def test_supervised_shares():
    found = Supervised.of(Collected(("a",), lengths=[10, 20, 10], supervised=[5, 5, 10]))
    assert (found.tokens, found.share) == (20, 0.5)
    assert (found.p25, found.p50, found.p75) == pytest.approx((0.375, 0.5, 0.75))
    assert inspect(pipeline((8,) * 9, masked=2), window=8).supervised.share == 0.75


@pytest.fixture(scope="module")
def vision() -> odb.Pipeline:
    return build_pipeline(str(Path(__file__).parents[2] / "pipelines" / "vision_chat.py"))


def test_the_images_of_the_vision_recipe(vision):
    found = inspect(vision, samples=40, window=8)
    prepare = prepare_for(vision, 0)
    records = list(vision.source.open().reading(odb.World(), seed=0, epoch=0).records())[:40]
    prepared = [prepare.record(record) for record in records]
    images = [image for sample in prepared for image in sample.images]
    sizes = [measure(image.data) for image in images]
    figures = found.images
    assert (figures.images, figures.samples_with_images) == (len(images), sum(bool(one.images) for one in prepared))
    assert (figures.width.max, figures.height.max) == (max(w for w, _ in sizes), max(h for _, h in sizes))
    assert figures.patches.mean == pytest.approx(sum(image.patches for image in images) / len(images))
    assert figures.tokens.mean * 4 == pytest.approx(figures.patches.mean)
    assert figures.file_bytes.max == max(image.data.nbytes for image in images)
    assert {part.name for part in found.histogram.by_modality} == {"text only", "with images"}
    assert found.decoding.images >= min(MOST_DECODED, len(images))
    assert found.times[-1].stage == "decode images (estimated)"
    assert found.held_bytes.max == max(map(held_bytes, prepared))
    sample = next(one for one in prepared if one.images)
    rows = sample.input_ids.nbytes * 6  # ids, labels, token types and three rows of rope
    assert held_bytes(sample) == rows + sum(image.data.nbytes for image in sample.images)


def test_decoding_is_timed_per_image_and_broken_samples_are_counted(vision, monkeypatch):
    collected, prepare = collect(vision, samples=20, seed=0, workers=0, report_progress=None)
    clock = FakeClock()
    monkeypatch.setattr(times, "time", clock.time)
    broken = collected.to_decode[1]

    def decode(source, images, where):
        clock.now += 0.5 * len(images)
        return Drop("image_broken") if images is broken.images else SimpleNamespace(pixels=list)

    monkeypatch.setattr(type(prepare), "decode", staticmethod(decode))
    count = sum(len(sample.images) for sample in collected.to_decode)
    expected = DecodeTime(images=count, broken_samples=1, milliseconds_an_image=pytest.approx(500))
    assert decode_time(prepare, collected.to_decode) == expected
    assert decode_time(prepare, []) is None


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
    order = [record.ref.index for record in given.source.reading(odb.World(), seed=0, epoch=0).records()]
    kept = [some_lengths(300)[index] for index in order if index % 5 != 4]
    for figures in measured.policies.figures:
        footprint = Footprint(figures.layout, odb.Budget(2_000))
        own = settings | ({"window": 256} if figures.policy == "paper-window" else {})
        assert figures == simulate(deal(kept, 4), policy=figures.policy, footprint=footprint, **own)
    assert [(figures.policy, figures.layout) for figures in compared.figures] == list(policies.COMPARED)


def simulator(ratios):
    """A simulator whose critical ratios are given by window or lookahead."""

    def run(policy, layout, *, window=None, lookahead=None):
        assert (policy, layout) == ("anchored", "padded")
        ratio = ratios[lookahead or window]
        return SimpleNamespace(critical_ratio=ratio, steps=10, world_size=2, idle_steps=0, emitted=80)

    return SimpleNamespace(run=run, settings=SimpleNamespace(layout="padded"))


WITHIN = (1.5, 1.2, 1.1049, 1.1001, 1.1, 1.1)  # 256 is the first window within half a per cent of the best
BEYOND = (1.5, 1.2, 1.1056, 1.1001, 1.1, 1.1)
FALLING = (1.5, 1.2, 1.15, 1.12, 1.1, 1.0)


@pytest.mark.parametrize(
    ("ratios", "host_memory", "window", "fits"),
    [(WITHIN, 10**9, 256, True), (BEYOND, 10**9, 512, True), (FALLING, 512_000, 512, True), (FALLING, 10, 64, False)],
    ids=["just within", "just beyond", "bounded by memory", "nothing fits"],
)
def test_the_smallest_window_near_the_best_that_fits_is_suggested(ratios, host_memory, window, fits):
    given = simulator(dict(zip(WINDOWS, ratios, strict=True)))
    found = suggest_window(given, bytes_a_sample=1000, host_memory=host_memory)
    assert (found.value, found.fits) == (window, fits)
    assert [point.host_bytes for point in found.curve] == [1000 * window for window in WINDOWS]


def test_a_lookahead_holds_its_groups_in_addition_to_the_window():
    found = suggest_lookahead(simulator(dict.fromkeys(LOOKAHEADS, 1.0)), 100, bytes_a_sample=10, host_memory=10**9)
    assert found.value == LOOKAHEADS[0]
    assert [point.host_bytes for point in found.curve] == [10 * (100 + 4 * lookahead) for lookahead in LOOKAHEADS]


@pytest.mark.parametrize(
    "settings",
    [{"samples": 0}, {"window": 0}, {"world_size": 0}, {"budget": 0}, {"layout": "loose"}, {"seed": -1},
     {"host_memory": 0}, {"workers": -1}, {"batch_size": 0}, {"lookahead": 0}],
    ids=str,
)  # fmt: skip
def test_a_setting_out_of_range_is_named(settings):
    given = pipeline(some_lengths(5))
    with pytest.raises(odb.ConfigError, match=next(iter(settings))):
        inspect(given, **settings)
    with pytest.raises(odb.ConfigError, match="must be a Pipeline"):
        inspect(given.source, **settings)


def test_equal_figures_give_equal_pictures():
    found = inspect(pipeline(some_lengths(50)), window=8)
    drawn = [[svg(picture) for picture in all_pictures(found)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert png(all_pictures(found), title="a") == png(all_pictures(found), title="a")


def test_many_sources_share_the_last_colour():
    subsets = [
        Subset(name=str(size), tokens=size, lengths=Spread.of([1] * size), counts=(size, 1)) for size in range(1, 10)
    ]
    shown = coloured(subsets)
    assert [name for name, _ in shown] == ["9", "8", "7", "6", "5", "4 others"]
    assert len(shown) == COLOURED_SOURCES + 1
    assert shown[-1][1] == [1 + 2 + 3 + 4, 4]
    assert coloured(subsets[:6]) == [(subset.name, subset.counts) for subset in subsets[:6]]
