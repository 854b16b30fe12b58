"""Going on with what is left of an epoch on another number of ranks: each sample once, in any number of goes."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tars import overwrite_blocks, watch_streams, write_counts
from remaining_support import Identity, after, check_going_on, identities, identity

from odb_stream import storage
from odb_stream.config import World
from odb_stream.errors import StateError
from odb_stream.sample import START, MixPosition, PartPosition, Position, Remaining, SampleRef
from odb_stream.shards.index import index_address
from odb_stream.sources.assignment import assign_remaining
from odb_stream.sources.dataset import FromDataset
from odb_stream.sources.remaining import normalised, rows_of_held
from odb_stream.sources.shards import OpenShards, Shards

COUNTS = st.lists(st.integers(1, 11), min_size=1, max_size=4)
SIZES = st.lists(st.integers(1, 5), min_size=3, max_size=3)


def open_shards(folder: Path, counts: list[int], *, shuffle: bool = True, on_damage: str = "error") -> OpenShards:
    urls = write_counts(folder, counts, indexed=True)
    return Shards(urls, shuffle=shuffle, on_damage=on_damage).open()  # type: ignore[arg-type]


@settings(max_examples=60)
@given(counts=COUNTS, sizes=SIZES, shuffle=st.booleans(), on_damage=st.sampled_from(["error", "drop"]), data=st.data())
def test_each_sample_is_emitted_once_over_three_world_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    sizes: list[int],
    shuffle: bool,
    on_damage: str,
    data: st.DataObject,
) -> None:
    source = open_shards(tmp_path_factory.mktemp("shards"), counts, shuffle=shuffle, on_damage=on_damage)
    everything = Counter(Identity(0, 2, shard, index) for shard, count in enumerate(counts) for index in range(count))
    check_going_on(source, sizes, everything, data)


@settings(max_examples=60)
@given(length=st.integers(0, 40), sizes=SIZES, shuffle=st.booleans(), data=st.data())
def test_each_item_of_a_dataset_too(length: int, sizes: list[int], shuffle: bool, data: st.DataObject) -> None:
    source = FromDataset([{}] * length, shuffle=shuffle)
    check_going_on(source, sizes, Counter(Identity(0, 2, 0, index) for index in range(length)), data)


def test_damaged_samples_are_left_and_emitted_like_others(tmp_path: Path) -> None:
    source = open_shards(tmp_path, [9, 9], on_damage="drop")
    overwrite_blocks(tmp_path / "part-1.tar", 8, 9, 10, 11)
    old = [source.reading(World(rank, 2), seed=0, epoch=0) for rank in range(2)]
    read = [list(reading.records()) for reading in old]
    emitted = [record for records in read for record in records[:3]]
    left = normalised(
        row for reading, records in zip(old, read, strict=True) for row in reading.remaining(after(records, 3))
    )
    records = [record for rank in range(3) for record in source.share_of(left, World(rank, 3), seed=0).records()]
    assert Counter(map(identity, emitted + records)) == Counter(
        Identity(0, 0, shard, index) for shard in range(2) for index in range(9)
    )
    assert sorted(identity(record).index for record in emitted + records if record.damage is not None) == [4, 5]


def test_records_are_the_true_ones_of_their_pass(tmp_path: Path) -> None:
    source = open_shards(tmp_path, [9, 5])
    true = {
        (record.ref, epoch): record
        for epoch in (0, 3)
        for record in source.reading(World(), seed=1, epoch=epoch).records()
    }
    rows = [Remaining(0, *row) for row in ((3, 1, 2, 4), (0, 0, 1, 8), (3, 0, 5, 6), (0, 1, 2, 3), (3, 1, 0, 1))]
    seen = Counter[Identity]()
    for rank in range(2):
        reading = source.share_of(rows, World(rank, 2), seed=1)
        records = list(reading.records())
        seen.update(map(identity, records))
        assert [record.epoch for record in records] == sorted(record.epoch for record in records)
        for record in records:
            known = true[record.ref, record.epoch]
            assert (record.key, record.members, record.shard) == (known.key, known.members, known.shard)
        held = [(record.ref, record.epoch) for record in records]
        assert [one.members for one in reading.fetch_all(held)] == [record.members for record in records]
    assert seen == identities(rows)


def test_the_order_is_drawn_anew_by_seed_pass_and_block(tmp_path: Path) -> None:
    source = open_shards(tmp_path, [12, 12, 12])

    def order(seed: int, epoch: int, start: int = 0) -> list[tuple[int, int]]:
        rows = [Remaining(0, epoch, shard, start, 12) for shard in range(3)]
        records = source.share_of(rows, World(), seed=seed).records()
        return [(record.ref.shard, record.ref.index) for record in records]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for number in range(3):
        assert len({tuple(index for shard, index in one if shard == number) for one in orders}) == 4
    assert len({tuple(dict.fromkeys(shard for shard, _ in one)) for one in orders}) > 1
    assert orders[0] == order(0, 0)
    whole = source.reading(World(), seed=0, epoch=0)
    assert [(record.ref.shard, record.ref.index) for record in whole.records()] == orders[0]
    assert [place for place in orders[0] if place[1] >= 8] == [place for place in order(0, 0, 4) if place[1] >= 8]


def test_items_are_dealt_in_an_order_drawn_anew() -> None:
    source = FromDataset([{}] * 30)

    def order(seed: int, epoch: int) -> list[int]:
        reading = source.share_of([Remaining(0, epoch, 0, 0, 30)], World(), seed=seed)
        return [record.ref.index for record in reading.records()]

    whole = [record.ref.index for record in source.reading(World(), seed=0, epoch=0).records()]
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(one) for one in [*orders, whole]}) == 5
    assert order(0, 0) == orders[0]


@pytest.mark.parametrize("on_damage", ["error", "drop"])
def test_singles_share_a_stream_and_what_lies_between_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_damage: str
) -> None:
    source = open_shards(tmp_path, [30, 30], on_damage=on_damage)
    overwrite_blocks(tmp_path / "part-0.tar", 10, 11, 12, 13)
    # Samples of 1 KiB: up to two are read over.
    held = [(SampleRef(0, 0, number, number * 1024), 0) for number in (11, 2, 4, 7, 8, 20)]
    opened = watch_streams(monkeypatch)
    reading = source.share_of(rows_of_held(held), World(), seed=0)
    records = list(reading.records())
    assert sorted(record.ref.index for record in records) == [2, 4, 7, 8, 11, 20]
    assert all(record.damage is None for record in records)
    assert opened == [("part-0.tar", 2 * 1024), ("part-0.tar", 20 * 1024)]
    opened.clear()
    assert list(reading.records(records[4].position)) == records[5:]
    assert opened == [("part-0.tar", 11 * 1024), ("part-0.tar", 20 * 1024)]


def test_a_rest_opens_nothing_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_shards(tmp_path, [9, 9, 9])
    monkeypatch.setattr(storage, "read_if_there", None)
    monkeypatch.setattr(storage, "open_stream", None)
    reading = source.share_of([Remaining(0, 0, shard, 3, 9) for shard in range(3)], World(1, 2), seed=0)
    assert reading.samples == 9
    assert identities(reading.remaining(START)).total() == 9


def test_nothing_left_is_nothing_to_read(tmp_path: Path) -> None:
    for source in (open_shards(tmp_path, [3]), FromDataset([{}] * 3)):
        reading = source.share_of([], World(1, 2), seed=0)
        assert (list(reading.records()), reading.samples, reading.remaining(START)) == ([], 0, [])


@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=5), size=st.integers(1, 6), turn=st.integers(0, 6))
def test_the_odd_ones_fall_to_the_ranks_from_a_turn_on(counts: list[int], size: int, turn: int) -> None:
    rows = normalised(Remaining(0, 0, shard, 1, 1 + count) for shard, count in enumerate(counts) if count)
    addresses = [""] * len(counts)
    shares = []
    for rank in range(size):
        own = World(rank, size)
        plan = assign_remaining(addresses, rows, own, order_of=lambda epoch: range(len(counts)), turn=turn)
        shares.append(sum(stop - start for part in plan for start, stop in part.keep or ()))
    each, odd = divmod(sum(counts), size)
    assert [share - each for share in shares] == [int((rank - turn) % size < odd) for rank in range(size)]


def test_rows_are_joined_and_sorted() -> None:
    drawn = ((1, 0, 0, 5, 6), (0, 1, 0, 4, 9), (0, 0, 2, 3, 4), (0, 0, 2, 1, 3), (0, 0, 2, 5, 6))
    rows = [Remaining(*row) for row in drawn]
    assert normalised(rows) == (
        Remaining(0, 0, 2, 1, 4), Remaining(0, 0, 2, 5, 6), Remaining(0, 1, 0, 4, 9), Remaining(1, 0, 0, 5, 6)
    )  # fmt: skip
    assert rows_of_held([(SampleRef(1, 3, 7, 512), 2), (SampleRef(0, 3, 7, -1), 4)]) == [
        Remaining(1, 2, 3, 7, 8), Remaining(0, 4, 0, 7, 8)
    ]  # fmt: skip


ROW = Remaining(0, 0, 1, 2, 5)
BAD_ROWS = [
    ([ROW, ROW], r"sample 2 of shard 1 \(source 0, pass 0\) remains twice"),
    ([ROW, Remaining(0, 0, 1, 4, 6)], "sample 4 of shard 1 .* twice"),
    ([Remaining(0, 0, 1, 3, 3)], "holds no sample"),
    ([Remaining(0, -1, 1, 3, 4)], "holds no sample"),
    ([Remaining(0, 0, 2, 0, 1)], "not among these 2 shards with 12 samples|not among the 6 items"),
    ([Remaining(0, 0, 0, 5, 7)], "not among these 2 shards with 12 samples|not among the 6 items"),
    ([Remaining(1, 0, 0, 0, 1)], "belongs to source 1"),
]


@pytest.mark.parametrize(("rows", "words"), BAD_ROWS)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: list[Remaining], words: str) -> None:
    for source in (open_shards(tmp_path, [6, 6]), FromDataset([{}] * 6)):
        with pytest.raises(StateError, match=words):
            source.share_of(rows, World(), seed=0)


def test_without_every_index_or_with_data_of_each_rank_nobody_can_tell(tmp_path: Path) -> None:
    urls = write_counts(tmp_path, [4, 4, 4], indexed=True)
    Path(index_address(f"{tmp_path}/part-1.tar")).unlink()
    own = FromDataset([{}] * 4, sharded=True)
    for source, words in ((Shards(urls).open(), r"part-1\.tar has no index"), (own, "dataset list is sharded")):
        for ranks in (1, 2, 5):  # whole shards, and each fifth sample
            for rank in range(ranks):
                with pytest.raises(StateError, match=words):
                    source.reading(World(rank, ranks), seed=0, epoch=0).remaining(START)
        with pytest.raises(StateError, match=words):
            source.share_of([], World(), seed=0)


def test_positions_of_something_else_are_refused(tmp_path: Path) -> None:
    for source, words in (
        (open_shards(tmp_path, [6, 6]), "beyond the 2 segments|position 8 in a block of 4"),
        (FromDataset([{}] * 6), "beyond the 6 samples"),
    ):
        reading = source.reading(World(), seed=0, epoch=0)
        for position in (Position(2, 0, 0, 1), Position(0, 7, -1, 0) if reading.plan == () else Position(0, 0, 0, 8)):
            with pytest.raises(StateError, match=words):
                reading.remaining(position)
            with pytest.raises(StateError, match=words):
                list(reading.records(position))
        with pytest.raises(StateError, match="mix"):
            reading.remaining(MixPosition((PartPosition(0, START, 0),) * 2))
