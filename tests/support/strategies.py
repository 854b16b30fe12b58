"""Hypothesis strategies for streams, budgets and footprints, shared by the batching tests."""

from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Size
from odb_stream.config import Budget

layouts = st.sampled_from(["padded", "packed"])


@st.composite
def footprints(draw, smallest_budget=8):
    budget = Budget(
        draw(st.integers(smallest_budget, 64)),
        patches=draw(st.none() | st.integers(1, 12)),
        samples=draw(st.none() | st.integers(1, 6)),
    )
    return Footprint(draw(layouts), budget, draw(st.integers(1, 4)))


sizes = st.builds(Size, st.integers(1, 70), st.integers(0, 6))
streams = st.lists(sizes, max_size=60)
