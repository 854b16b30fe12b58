"""Groups that travel between ranks arrive as they left."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint, Group
from odb_stream.config import Budget
from odb_stream.nodes.pack import size_of
from odb_stream.nodes.wire_format import decode_groups, encode_groups
from odb_stream.sample import Op, PreparedImage, PreparedSample, SampleRef

FOOTPRINT = Footprint("padded", Budget(64))
tokens = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=12)
refs = st.builds(SampleRef, st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-1, 2**50))


ops = st.builds(Op, st.integers(0, 9), st.lists(st.floats(allow_nan=False), max_size=3).map(tuple))
images = st.builds(
    PreparedImage,
    st.binary(max_size=9).map(lambda data: np.frombuffer(data, np.uint8)),
    st.lists(ops, max_size=2).map(tuple),
    st.tuples(st.just(1), st.integers(1, 99), st.integers(1, 99)),
    st.integers(1, 99),
)


@st.composite
def samples(draw):
    ids = np.array(draw(tokens), dtype=np.int32)
    text = PreparedSample(draw(refs), ids, ids[::-1].copy(), draw(st.integers(0, 99)))
    if draw(st.booleans()):
        return text
    return text._replace(
        images=tuple(draw(st.lists(images, max_size=3))),
        token_types=ids % 2,
        rope=np.stack([ids, ids + 1, ids - 1]),
        epoch=draw(st.integers(0, 9)),
        origin=draw(st.none() | st.tuples(st.text(), st.text())),
    )


@given(st.lists(st.lists(samples(), min_size=1, max_size=4), max_size=4))
def test_groups_arrive_as_they_left(contents):
    groups = [Group.of(tuple(group), tuple(map(size_of, group)), FOOTPRINT) for group in contents]
    data = encode_groups(groups)
    assert data.dtype == np.uint8
    arrived = decode_groups(data.copy(), FOOTPRINT)
    assert plain(arrived) == plain(groups)


def plain(value):
    """The same with arrays as lists, which compare as a whole."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, Group):
        return [plain(value.samples), value.sizes, value.counts]
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value
