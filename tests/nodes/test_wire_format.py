"""Groups that travel between ranks arrive as they left."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.cost import Footprint
from odb_stream.batching.groups import Group
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
    plain = PreparedSample(draw(refs), ids, ids[::-1].copy(), draw(st.integers(0, 99)))
    if draw(st.booleans()):
        return plain
    pictures = tuple(draw(st.lists(images, max_size=3)))
    return plain._replace(images=pictures, token_types=ids % 2, rope=np.stack([ids, ids + 1, ids - 1]))


@given(st.lists(st.lists(samples(), min_size=1, max_size=4), max_size=4))
def test_groups_arrive_as_they_left(contents):
    groups = [Group.of(tuple(group), tuple(map(size_of, group)), FOOTPRINT) for group in contents]
    data = encode_groups(groups)
    assert data.dtype == np.uint8
    arrived = decode_groups(data.copy(), FOOTPRINT)
    assert [group.counts for group in arrived] == [group.counts for group in groups]
    assert [group.sizes for group in arrived] == [group.sizes for group in groups]
    for mine, theirs in zip(groups, arrived, strict=True):
        for sent, received in zip(mine.samples, theirs.samples, strict=True):
            assert (sent.ref, sent.supervised) == (received.ref, received.supervised)
            assert np.array_equal(sent.input_ids, received.input_ids)
            assert np.array_equal(sent.labels, received.labels)
            for mine, theirs in ((sent.token_types, received.token_types), (sent.rope, received.rope)):
                assert (mine is None) == (theirs is None)
                assert mine is None or np.array_equal(mine, theirs)
            assert len(sent.images) == len(received.images)
            for picture, arrived_picture in zip(sent.images, received.images, strict=True):
                assert picture[1:] == arrived_picture[1:]
                assert np.array_equal(picture.data, arrived_picture.data)
