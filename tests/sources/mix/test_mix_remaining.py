"""Going on with what is left of a mix on another number of ranks, where each source is read so many times."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_data import Tokens, bound, numbered, sharded
from remaining_support import Identity, after, check_going_on, identities, identity

import odb_stream as odb
from odb_stream.sample import START, MixPosition, PartPosition, Remaining
from odb_stream.sources.mix.reading import REPEAT
from odb_stream.sources.remaining import normalised


def mix(pipelines, weights, mode="once"):
    return odb.Mix(dict(zip("abc", zip(pipelines, weights, strict=True), strict=False)), mode=mode).open()


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    length=st.integers(1, 9),
    passes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    data=st.data(),
)
def test_each_sample_of_each_pass_is_emitted_once(tmp_path_factory, counts, length, passes, sizes, data):
    source = mix([sharded(tmp_path_factory.mktemp("x"), counts, indexed=True), numbered(length)], passes)
    samples = [(0, shard, index) for shard, count in enumerate(counts) for index in range(count)]
    samples += [(1, 0, index) for index in range(length)]
    everything = Counter(
        Identity(number, 2 + again * REPEAT, shard, index)
        for number, shard, index in samples
        for again in range(passes[number])
    )
    check_going_on(source, sizes, everything, data)


def left_after(source, ranks, cut):
    rows = []
    for rank in range(ranks):
        reading = source.reading(odb.World(rank, ranks), seed=0, epoch=0)
        rows += reading.remaining(after(list(reading.records()), cut))
    return normalised(rows)


def test_what_is_left_of_the_sources_is_interleaved_in_proportion(tmp_path):
    source = mix([sharded(tmp_path, [30], indexed=True), numbered(60)], [2, 1])
    left = left_after(source, 2, 11)
    due = Counter(sample.source for sample in identities(left).elements())
    assert due.total() == 120 - 22
    for rank in range(3):
        reading = source.share_of(left, odb.World(rank, 3), seed=0)
        records = list(reading.records())
        own = Counter(record.ref.source for record in records)
        assert all(abs(own[number] - due[number] / 3) < 1 for number in due)
        taken = Counter()
        for number, record in enumerate(records, start=1):
            taken[record.ref.source] += 1
            assert all(abs(taken[s] - number * own[s] / len(records)) <= bound(2) for s in own)
        held = [(record.ref, record.epoch) for record in records]
        assert [(one.ref, one.epoch, one.key, one.members) for one in reading.fetch_all(held)] == [
            (one.ref, one.epoch, one.key, one.members) for one in records
        ]
        assert {part.source for part in reading.plan} == {0}


def test_held_records_of_a_mix_come_in_the_order_asked(tmp_path):
    source = mix([sharded(tmp_path, [5, 4], indexed=False), numbered(7)], [2, 1], "weights")
    reading = source.reading(odb.World(), seed=0, epoch=0)
    records = list(reading.records())[::-1]
    held = [(record.ref, record.epoch) for record in records]
    assert reading.fetch_all(held) == [reading.fetch_all([one])[0] for one in held]
    assert [(one.ref, one.epoch, one.members) for one in reading.fetch_all(held)] == [
        (one.ref, one.epoch, one.members) for one in records
    ]
    with pytest.raises(odb.ShardError, match="no source 2 in a mix of 2"):
        reading.fetch_all([*held, (held[0][0]._replace(source=2), 0)])


def test_a_source_that_is_finished_is_left_out(tmp_path):
    source = mix([numbered(3), sharded(tmp_path, [6], indexed=True), numbered(4)], [1, 1, 2])
    for ranks in (1, 2, 9):
        rows = [Remaining(2, REPEAT, 0, 1, 4), Remaining(1, 0, 0, 2, 3)]
        readings = [source.share_of(rows, odb.World(rank, ranks), seed=0) for rank in range(ranks)]
        records = [record for reading in readings for record in reading.records()]
        assert Counter(map(identity, records)) == identities(rows)
        assert sorted(reading.samples for reading in readings)[-1] == -(-4 // ranks)
    nothing = source.share_of([], odb.World(), seed=0)
    assert (list(nothing.records()), nothing.samples, nothing.remaining(START)) == ([], 0, [])


def test_what_depends_on_the_number_of_ranks_is_refused(tmp_path):
    source = mix([numbered(3), numbered(5)], [2, 1], "weights")
    words = "how often a source is repeated until then depends on the number of ranks"
    with pytest.raises(odb.StateError, match=words):
        source.reading(odb.World(), seed=0, epoch=0).remaining(START)
    with pytest.raises(odb.StateError, match=words):
        source.share_of([], odb.World(), seed=0)
    unindexed = mix([numbered(3), sharded(tmp_path, [2], indexed=False)], [1, 1])
    own = mix([numbered(3), odb.Pipeline(odb.FromDataset(Tokens(4), sharded=True))], [1, 1])
    for source, words in ((unindexed, "has no index"), (own, "dataset Tokens is sharded")):
        with pytest.raises(odb.StateError, match=words):
            source.reading(odb.World(), seed=0, epoch=0).remaining(START)


def test_rows_and_positions_that_do_not_fit_are_refused():
    source = mix([numbered(3), numbered(5)], [2, 1])
    with pytest.raises(odb.StateError, match="not belong to a mix of 2 sources"):
        source.share_of([Remaining(2, 0, 0, 0, 1)], odb.World(), seed=0)
    with pytest.raises(odb.StateError, match=r"not among the 3 items of dataset Tokens"):
        source.share_of([Remaining(0, 0, 0, 0, 4)], odb.World(), seed=0)
    with pytest.raises(odb.StateError, match="remains twice"):
        source.share_of([Remaining(0, 0, 0, 0, 2)] * 2, odb.World(), seed=0)
    rest = source.share_of([Remaining(0, 0, 0, 0, 2), Remaining(1, 0, 0, 0, 2)], odb.World(), seed=0)
    whole = source.reading(odb.World(), seed=0, epoch=0)
    second = MixPosition((PartPosition(1, START, 0), PartPosition(0, START, 0)))
    assert identities(whole.remaining(second)).total() == 8
    for reading, position in ((rest, second), (whole, MixPosition(second.parts[::-1]))):
        with pytest.raises(odb.StateError, match="does not belong to a mix of 2 sources"):
            reading.remaining(position)
        with pytest.raises(odb.StateError, match="does not belong to a mix of 2 sources"):
            list(reading.records(position))
