"""Spreads, histograms and supervised shares: they add up, whatever the lengths."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection_data import pipeline

from odb_stream.inspection import inspect
from odb_stream.inspection.collect import Collected
from odb_stream.inspection.figures import BINS, Histogram, Spread, Supervised

samples = st.lists(
    st.tuples(st.integers(1, 100_000), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60
)


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
