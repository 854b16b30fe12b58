"""Readings of a mix: proportions, exact passes, ends, restarts at every record, ranks and empty sources.

Then: going on with what is left on another number of ranks, where each source is read so many times.
"""

import logging
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_data import Tokens, bound, numbered, sharded
from remaining_support import Identity, after, check_cuts, check_going_on, identities, identity

import odb_stream as odb
from odb_stream.sample import START, MixPosition, PartPosition, Position, Remaining, position_from
from odb_stream.sources.mix.reading import REPEAT
from odb_stream.sources.mix.schedule import whole_weights
from odb_stream.sources.remaining import normalised

NAMES = "abcd"
LENGTHS = st.lists(st.integers(1, 14), min_size=2, max_size=4)


def mix(pipelines, weights, mode="weights"):
    return odb.Mix(dict(zip(NAMES, zip(pipelines, weights, strict=True), strict=False)), mode=mode)


def readings(source, ranks=1, *, seed=3, epoch=0):
    opened = source.open()
    return [opened.reading(odb.World(rank, ranks), seed=seed, epoch=epoch) for rank in range(ranks)]


def check_ratio(records, active):
    """Every prefix keeps the bound over the sources that this rank has."""
    total, taken = sum(active.values()), Counter()
    for number, record in enumerate(records, start=1):
        taken[record.ref.source] += 1
        for source, weight in active.items():
            assert abs(taken[source] - Fraction(number * weight, total)) <= bound(len(active))


def check_ends(records, parts, epoch):
    """Every source was read through, with the last record at the latest; further passes are whole but the last."""
    missing = {source: Counter(refs) for source, refs in parts.items()}
    for number, record in enumerate(records, start=1):
        if record.epoch == epoch:
            missing[record.ref.source][record.ref] -= 1
        left = sum(sum(refs.values()) for refs in missing.values())
        assert (left == 0) == (number == len(records))
    by_pass = Counter((record.ref.source, (record.epoch - epoch) // REPEAT) for record in records)
    for (source, number), count in by_pass.items():
        assert count == len(parts[source]) or (source, number + 1) not in by_pass
        assert number == 0 or (source, number - 1) in by_pass
    assert all((record.epoch - epoch) % REPEAT == 0 for record in records)


def own_parts(source, rank, ranks, *, seed=3, epoch=0):
    """What the sources by themselves would give this rank: references by source, without those of nothing."""
    alone = [pipeline.source.open() for pipeline in source.pipelines]
    world = odb.World(rank, ranks)
    parts = {
        number: [record.ref for record in one.reading(world, seed=seed, epoch=epoch, source=number).records()]
        for number, one in enumerate(alone)
    }
    return {source: refs for source, refs in parts.items() if refs}


@given(LENGTHS, st.integers(1, 3), st.data())
def test_weights_hold_over_every_prefix_and_the_epoch_ends_with_the_last_source(lengths, ranks, data):
    weights = data.draw(st.lists(st.sampled_from([1, 2, 5, 0.5, 0.3, 7]), min_size=len(lengths), max_size=len(lengths)))
    source = mix(map(numbered, lengths), weights)
    for rank, reading in enumerate(readings(source, ranks)):
        records = check_cuts(reading)
        parts = own_parts(source, rank, ranks)
        whole = whole_weights(weights)
        check_ratio(records, {number: whole[number] for number in parts})
        check_ends(records, parts, epoch=0)
        assert reading.samples is not None
        assert len({(record.ref, record.epoch) for record in records}) == len(records)


@given(LENGTHS, st.integers(1, 3), st.data())
def test_once_reads_each_source_exactly_so_many_times_over_all_ranks(lengths, ranks, data):
    passes = data.draw(st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths)))
    source = mix(map(numbered, lengths), passes, "once")
    seen, identities = Counter(), []
    for reading in readings(source, ranks):
        records = check_cuts(reading)
        assert len(records) == reading.samples
        seen.update((record.ref.source, record.ref.index) for record in records)
        identities += [(record.ref, record.epoch) for record in records]
        own = {number: one.samples * passes[number] for number, one in enumerate(reading.first)}
        check_ratio(records, {number: count for number, count in own.items() if count})
    assert seen == Counter({(number, i): passes[number] for number, size in enumerate(lengths) for i in range(size)})
    assert len(set(identities)) == len(identities)
    assert source.open().samples == sum(size * times for size, times in zip(lengths, passes, strict=True))


@pytest.mark.parametrize("mode", ["weights", "once"])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_shards_of_known_and_unknown_length(tmp_path, mode, indexed, ranks):
    lines = [sharded(tmp_path / name, counts, indexed=indexed) for name, counts in (("x", [7, 3]), ("y", [2, 1, 5]))]
    source = mix([*lines, numbered(6)], [3, 1, 2], mode)
    seen = Counter()
    for rank, reading in enumerate(readings(source, ranks, epoch=4)):
        records = check_cuts(reading)
        assert reading.samples == (len(records) if indexed else None)
        seen.update((ref.source, ref.shard, ref.index) for ref in (record.ref for record in records))
        assert [part.address for part in reading.plan] == [part.address for one in reading.first for part in one.plan]
        if mode == "weights":
            parts = own_parts(source, rank, ranks, epoch=4)
            check_ratio(records, {number: (3, 1, 2)[number] for number in parts})
    samples = {(0, s, i) for s, count in enumerate([7, 3]) for i in range(count)}
    samples |= {(1, s, i) for s, count in enumerate([2, 1, 5]) for i in range(count)}
    assert {key for key in seen if key[0] < 2} == samples
    if mode == "once":
        assert {seen[key] for key in samples if key[0] == 0} == {3}
        assert {seen[key] for key in samples if key[0] == 1} == {1}


def test_sources_of_unknown_length_take_turns_by_weight_until_they_end(tmp_path):
    lines = [sharded(tmp_path / name, [count], indexed=False) for name, count in (("x", 2), ("y", 9), ("z", 9))]
    (reading,) = readings(mix(lines, [2, 1, 1], "once"))
    records = check_cuts(reading)
    assert Counter(record.ref.source for record in records) == {0: 4, 1: 9, 2: 9}
    check_ratio(records[:8], {0: 2, 1: 1, 2: 1})
    check_ratio(records[8:], {1: 1, 2: 1})
    assert [record.position.parts[0].turns for record in records] == [1, 1, 1, 2, 3, 3, 3, 4] + [0] * 14


def test_records_are_read_again_with_their_passes_in_the_order_asked(tmp_path):
    lines = [sharded(tmp_path / str(indexed), [5, 4], indexed=indexed) for indexed in (True, False)]
    (reading,) = readings(mix([numbered(3), *lines], [2, 1, 1]), epoch=1)
    records = check_cuts(reading, every=7)[::-1]
    assert {record.epoch for record in records} >= {1, 1 + REPEAT}
    held = [(record.ref, record.epoch) for record in records]
    assert reading.fetch_all(held) == [replace(record, position=START) for record in records]
    assert reading.fetch_all(held) == [reading.fetch_all([one])[0] for one in held]
    with pytest.raises(odb.ShardError, match="no source 3 in a mix of 3"):
        reading.fetch_all([*held, (held[0][0]._replace(source=3), 0)])


def test_epochs_and_passes_are_drawn_anew():
    source = mix([numbered(12), numbered(40)], [1, 1])
    orders = []
    for epoch in (0, 1):
        (reading,) = readings(source, epoch=epoch)
        by_pass = {}
        for record in reading.records():
            by_pass.setdefault((record.ref.source, record.epoch), []).append(record.ref.index)
        orders += [tuple(order) for (number, _), order in by_pass.items() if number == 0 and len(order) == 12]
    assert len(orders) == len(set(orders)) == 6
    (again,) = readings(source)
    assert [record.ref.index for record in again.records() if record.ref.source == 0][:12] == list(orders[0])


def test_a_source_of_a_mix_alone_is_read_as_without_a_mix():
    (reading,) = readings(mix([numbered(20), numbered(20)], [1, 1], "once"))
    alone = numbered(20).source.reading(odb.World(), seed=3, epoch=0)
    assert [r.ref for r in reading.records() if r.ref.source == 0] == [r.ref for r in alone.records()]


@pytest.mark.parametrize("kind", ["dataset", "one shard", "many shards"])
def test_the_same_data_in_two_sources_is_told_and_never_read_in_step(tmp_path, caplog, kind):
    counts = {"one shard": [40], "many shards": [1] * 40}
    line = numbered(40) if kind == "dataset" else sharded(tmp_path, counts[kind], indexed=True)
    with caplog.at_level(logging.WARNING):
        (reading,) = readings(mix([line, line], [1, 1], "once"))
    refs = [record.ref for record in reading.records()]
    first, second = ([ref[1:3] for ref in refs if ref.source == source] for source in (0, 1))
    assert sorted(first) == sorted(second)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert [m for m in caplog.messages if "read the same data" in m and "'a' and 'b'" in m] == caplog.messages
    line = numbered(9, shuffle=False)
    with pytest.raises(odb.ConfigError, match=r"'a' and 'b' of the mix read the same data in the same order"):
        mix([line, line], [1, 2]).open()


def test_a_source_with_fewer_samples_than_ranks_is_left_out_where_it_is_missing(caplog):
    source = mix([numbered(2), numbered(40), numbered(40)], [2, 1, 1]).open()
    for rank, active in [(1, {0: 2, 1: 1, 2: 1}), (3, {1: 1, 2: 1})]:
        caplog.clear()
        for epoch in (0, 1):
            records = list(source.reading(odb.World(rank, 4), seed=0, epoch=epoch).records())
            check_ratio(records, active)
            assert {record.ref.source for record in records} == set(active)
        assert caplog.messages == [] if rank == 1 else len(caplog.messages) == 1
    assert "rank 3 of 4 has no sample of source 'a' of the mix, which has 2 in all" in caplog.text


def test_empty_sources_are_refused_by_name():
    with pytest.raises(odb.ConfigError, match="source 'b' of the mix has no sample: leave it out"):
        mix([numbered(3), numbered(0)], [1, 1]).open()
    own = odb.Pipeline(odb.FromDataset(Tokens(0), sharded=True))
    (reading,) = readings(mix([own, numbered(3)], [1, 1]))
    with pytest.raises(odb.ConfigError, match="source 'a' of the mix has no sample"):
        list(reading.records())
    lonely = mix([own, own], [1, 1]).open().reading(odb.World(0, 2), seed=0, epoch=0)
    assert list(lonely.records()) == []
    assert lonely.samples == 0


@pytest.mark.parametrize("rank", range(4))
def test_passes_that_hold_nothing_for_a_rank_are_passed_over(tmp_path, rank):
    # Without an index every rank takes each fourth sample of these shards, and which depends on their drawn order.
    source = mix([sharded(tmp_path, [1, 3], indexed=False), numbered(200)], [1, 1]).open()
    for epoch in range(4):
        reading = source.reading(odb.World(rank, 4), seed=0, epoch=epoch)
        records = list(reading.records())
        check_ratio(records, Counter({record.ref.source: 1 for record in records}))
        assert len({(record.ref, record.epoch) for record in records}) == len(records)
        assert sum(record.ref.source == 1 for record in records) == 50


def test_once_is_exact_where_passes_hold_nothing_for_some_ranks(tmp_path):
    source = mix([sharded(tmp_path, [1, 3], indexed=False), numbered(20)], [5, 1], "once")
    seen, passes = Counter(), set()
    for reading in readings(source, 4, seed=1):
        records = check_cuts(reading)
        mine = [record for record in records if record.ref.source == 0]
        seen.update((record.ref.shard, record.ref.index, record.epoch // REPEAT) for record in mine)
        passes.add(len({record.epoch for record in mine}))
    assert passes > {5}, "no rank was without records in some pass: another seed would be needed"
    assert seen == Counter({(s, i, k): 1 for s, count in enumerate([1, 3]) for i in range(count) for k in range(5)})


class OnePass(odb.FromDataset):
    """A dataset that is gone after its first pass."""

    def reading(self, world, *, seed, epoch, source=0):
        kept = self if epoch < REPEAT else odb.FromDataset(Tokens(0))
        return odb.FromDataset.reading(kept, world, seed=seed, epoch=epoch, source=source)


def test_a_source_that_has_nothing_any_more_ends_the_run():
    (reading,) = readings(mix([odb.Pipeline(OnePass(Tokens(3))), numbered(9)], [1, 1]))
    with pytest.raises(odb.ShardError, match="source 'a' of the mix had no sample for rank 0 in 64 passes in a row"):
        list(reading.records())


def test_positions_of_something_else_are_refused():
    (reading,) = readings(mix([numbered(3), numbered(3)], [1, 1]))
    for position in (Position(0, 1, -1, 0), MixPosition((PartPosition(0, Position(0, 1, -1, 0), 1),) * 3)):
        with pytest.raises(odb.StateError, match="mix of 2 sources"):
            next(reading.records(position))
    position = next(reading.records()).position
    with pytest.raises(odb.StateError, match="mix of 2 sources"):
        next(reading.first[0].records(position))
    for state in ([], [1, 2, 3], [[0, [0, 0, 0], 1]], [["0", [0, 0, 0, 0], 1]], [None], [0, 0, 0, True]):
        with pytest.raises(odb.StateError, match="reading position"):
            position_from(state)


def test_more_epochs_than_passes_can_be_told_from_are_refused():
    source = mix([numbered(3), numbered(3)], [1, 1]).open()
    with pytest.raises(odb.ConfigError, match=f"epoch {REPEAT} of a Mix"):
        source.reading(odb.World(), seed=0, epoch=REPEAT)


def test_a_float_with_many_digits_leaves_the_length_open():
    lengths = [200_000, 200_000]
    (reading,) = readings(mix(map(numbered, lengths), [0.123456789012345, 0.1]))
    assert reading.samples is None
    (reading,) = readings(mix(map(numbered, lengths), [0.1, 0.3]))
    assert reading.samples == 800_000 - 2


# ---- What is left of a mix ----


def opened(pipelines, weights, mode="once"):
    return mix(pipelines, weights, mode).open()


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    length=st.integers(1, 9),
    passes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    data=st.data(),
)
def test_each_sample_of_each_pass_is_emitted_once(tmp_path_factory, counts, length, passes, sizes, data):
    source = opened([sharded(tmp_path_factory.mktemp("x"), counts, indexed=True), numbered(length)], passes)
    samples = [(0, shard, index) for shard, count in enumerate(counts) for index in range(count)]
    samples += [(1, 0, index) for index in range(length)]
    everything = Counter(
        Identity(number, 2 + again * REPEAT, shard, index)
        for number, shard, index in samples
        for again in range(passes[number])
    )
    check_going_on(source, sizes, everything, data)


def test_what_is_left_of_the_sources_is_interleaved_in_proportion(tmp_path):
    source = opened([sharded(tmp_path, [30], indexed=True), numbered(60)], [2, 1])
    halves = [source.reading(odb.World(rank, 2), seed=0, epoch=0) for rank in range(2)]
    left = normalised(row for one in halves for row in one.remaining(after(list(one.records()), 11)))
    due = Counter(sample.source for sample in identities(left).elements())
    assert due.total() == 120 - 22
    for rank in range(3):
        reading = source.share_of(left, odb.World(rank, 3), seed=0)
        records = list(reading.records())
        own = Counter(record.ref.source for record in records)
        assert all(abs(own[number] - due[number] / 3) < 1 for number in due)
        check_ratio(records, own)
        held = [(record.ref, record.epoch) for record in records]
        assert reading.fetch_all(held) == [replace(record, position=START) for record in records]
        assert {part.source for part in reading.plan} == {0}


def test_a_source_that_is_finished_is_left_out(tmp_path):
    source = opened([numbered(3), sharded(tmp_path, [6], indexed=True), numbered(4)], [1, 1, 2])
    for ranks in (1, 2, 9):
        rows = [Remaining(2, REPEAT, 0, 1, 4), Remaining(1, 0, 0, 2, 3)]
        readings = [source.share_of(rows, odb.World(rank, ranks), seed=0) for rank in range(ranks)]
        records = [record for reading in readings for record in reading.records()]
        assert Counter(map(identity, records)) == identities(rows)
        assert sorted(reading.samples for reading in readings)[-1] == -(-4 // ranks)
    nothing = source.share_of([], odb.World(), seed=0)
    assert (list(nothing.records()), nothing.samples, nothing.remaining(START)) == ([], 0, [])


def test_what_depends_on_the_number_of_ranks_is_refused(tmp_path):
    source = opened([numbered(3), numbered(5)], [2, 1], "weights")
    words = "how often a source is repeated until then depends on the number of ranks"
    with pytest.raises(odb.StateError, match=words):
        source.reading(odb.World(), seed=0, epoch=0).remaining(START)
    with pytest.raises(odb.StateError, match=words):
        source.share_of([], odb.World(), seed=0)
    unindexed = opened([numbered(3), sharded(tmp_path, [2], indexed=False)], [1, 1])
    own = opened([numbered(3), odb.Pipeline(odb.FromDataset(Tokens(4), sharded=True))], [1, 1])
    for source, words in ((unindexed, "has no index"), (own, "dataset Tokens is sharded")):
        with pytest.raises(odb.StateError, match=words):
            source.reading(odb.World(), seed=0, epoch=0).remaining(START)


def test_rows_and_positions_that_do_not_fit_are_refused():
    source = opened([numbered(3), numbered(5)], [2, 1])
    for rows, words in (
        ([Remaining(2, 0, 0, 0, 1)], "not belong to a mix of 2 sources"),
        ([Remaining(0, 0, 0, 0, 4)], "not among the 3 items of dataset Tokens"),
        ([Remaining(0, 0, 0, 0, 2)] * 2, "remains twice"),
    ):
        with pytest.raises(odb.StateError, match=words):
            source.share_of(rows, odb.World(), seed=0)
    rest = source.share_of([Remaining(0, 0, 0, 0, 2), Remaining(1, 0, 0, 0, 2)], odb.World(), seed=0)
    whole = source.reading(odb.World(), seed=0, epoch=0)
    second = MixPosition((PartPosition(1, START, 0), PartPosition(0, START, 0)))
    assert identities(whole.remaining(second)).total() == 8
    for reading, position in ((rest, second), (whole, MixPosition(second.parts[::-1]))):
        with pytest.raises(odb.StateError, match="does not belong to a mix of 2 sources"):
            reading.remaining(position)
        with pytest.raises(odb.StateError, match="does not belong to a mix of 2 sources"):
            list(reading.records(position))
