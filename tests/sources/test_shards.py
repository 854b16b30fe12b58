"""Shards as a source: order, restart at every record, reading again, and what an index adds."""

import logging
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_tars import chat_files, watch_streams, write_chats, write_counts, write_tar_file
from remaining_support import check_cuts

from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError
from odb_stream.sample import START, SampleRef
from odb_stream.shards.index import index_address, write_index
from odb_stream.shards.reader import build_index
from odb_stream.sources.shards import ShardReading, Shards
from odb_stream.sources.source import Reading, Source


def open_all(source: Shards, ranks: int, *, seed: int = 5, epoch: int = 0) -> list[ShardReading]:
    return [source.reading(World(rank, ranks), seed=seed, epoch=epoch) for rank in range(ranks)]


def refs(readings: list[ShardReading]) -> list[SampleRef]:
    return [record.ref for reading in readings for record in reading.records()]


def test_shards_keep_the_contract_of_a_source(tmp_path: Path) -> None:
    source: Source = Shards(write_counts(tmp_path, [3], indexed=False))
    reading: Reading = source.reading(World(), seed=0, epoch=0)
    assert pickle.loads(pickle.dumps(source)) == source
    (first, *_), opener = list(reading.records()), pickle.loads(pickle.dumps(source.opener()))
    assert opener(first)["messages"][0]["content"] == f"message {first.key}"
    assert first.shard == f"{tmp_path}/part-0.tar"
    assert first.where == f"{first.shard}, key {first.key!r} (sample {first.ref.index}, byte offset {first.ref.offset})"


@settings(max_examples=50)
@example(counts=[9, 2, 1, 6], ranks=5, indexed=False, shuffle=True, seed=5)
@example(counts=[9, 2, 1, 6], ranks=5, indexed=True, shuffle=True, seed=5)
@given(
    counts=st.lists(st.integers(1, 11), min_size=1, max_size=4),
    ranks=st.integers(1, 5),
    indexed=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_sample_is_read_once_and_reading_continues_from_every_cut_point(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], ranks: int, indexed: bool, shuffle: bool, seed: int
) -> None:
    source = Shards(write_counts(tmp_path_factory.mktemp("shards"), counts, indexed=indexed), shuffle=shuffle)
    dealt: Counter[tuple[int, int]] = Counter()
    for reading in open_all(source, ranks, seed=seed, epoch=1):
        whole = check_cuts(reading)
        dealt.update((record.ref.shard, record.ref.index) for record in whole)
        assert (reading.samples is None) != indexed
        found = reading.fetch_all([(record.ref, 3) for record in whole])
        assert found == [replace(record, position=START, epoch=3) for record in whole]
    assert dealt == Counter((shard, index) for shard, count in enumerate(counts) for index in range(count))


def test_going_on_reads_nothing_before_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Shards(write_counts(tmp_path, [40, 40], indexed=False)).reading(World(), seed=0, epoch=0)
    whole = list(reading.records())
    opened = watch_streams(monkeypatch)
    record = whole[50]
    assert record.position.offset > 0
    assert next(reading.records(record.position)) == whole[51]
    assert [offset for _, offset in opened] == [record.position.offset]


def test_without_shuffle_the_order_is_that_of_names_and_files(tmp_path: Path) -> None:
    write_chats(tmp_path, 23, 5)
    reading = Shards(f"{tmp_path}/*.tar", shuffle=False).reading(World(), seed=1, epoch=2)
    assert [record.key for record in reading.records()] == [f"{number:08d}" for number in range(23)]


def test_the_order_is_drawn_from_seed_and_epoch_within_blocks(tmp_path: Path) -> None:
    source = Shards(write_counts(tmp_path, [12, 12, 12], indexed=False))
    orders = [refs(open_all(source, 1, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for shard in range(3):
        assert len({tuple(ref.index for ref in order if ref.shard == shard) for order in orders}) == 4
    assert len({tuple(dict.fromkeys(ref.shard for ref in order)) for order in orders}) > 1
    assert orders[0] == refs(open_all(source, 1, seed=0, epoch=0))
    for order in orders:
        blocks = [order[start : start + 4] for start in range(0, 36, 4)]
        assert all({ref.index // 4 for ref in block} == {min(block).index // 4} for block in blocks)
        assert any([ref.index for ref in block] != sorted(ref.index for ref in block) for block in blocks)


def test_an_index_splits_one_shard_over_ranks_without_reading_it_all(tmp_path: Path) -> None:
    source = Shards(write_counts(tmp_path, [10], indexed=True))
    plans = [reading.plan[0] for reading in open_all(source, 3)]
    offsets = build_index(plans[0].address).offsets
    assert [(plan.start, plan.stop, plan.offset) for plan in plans] == [
        (0, 3, 0), (3, 6, offsets[3]), (6, 10, offsets[6])
    ]  # fmt: skip


def test_fewer_shards_than_ranks_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Shards(write_counts(tmp_path, [10], indexed=False))
    with caplog.at_level(logging.WARNING):
        open_all(source, 3)
        open_all(source, 3, epoch=1)
    (message,) = caplog.messages
    assert "1 shards for 3 ranks" in message
    assert "odb-stream index" in message


def test_shards_with_and_without_an_index_are_dealt_whole_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Shards(write_counts(tmp_path, [4, 4, 4], indexed=True))
    Path(index_address(f"{tmp_path}/part-1.tar")).unlink()
    with caplog.at_level(logging.WARNING):
        readings = open_all(source, 2)
    assert sorted(len(reading.plan) for reading in readings) == [1, 2]
    assert {reading.samples for reading in readings} == {None}
    assert len(refs(readings)) == 12
    assert "only 2 of 3 shards have an index" in caplog.text


def test_a_shard_that_changed_under_its_index_is_an_error(tmp_path: Path) -> None:
    source = Shards(write_counts(tmp_path, [6], indexed=True))
    address = f"{tmp_path}/part-0.tar"
    size = Path(address).stat().st_size
    for samples, prefix, words in (
        (5, "s0/", "the index has 6 samples, the shard ends after 5"),
        (7, "s0/", "holds more than the 6 samples of its index"),
        (6, "t0/", "sample 0 is key 't0/00000' .*"),
    ):
        write_tar_file(Path(address), chat_files(samples, prefix=prefix))
        assert Path(address).stat().st_size == size
        with pytest.raises(ShardError, match=f"{words}; run `odb-stream index` again"):
            refs(open_all(source, 1))
    write_tar_file(Path(address), chat_files(60, prefix="s0/"))
    with pytest.raises(ShardError, match="stale"):
        open_all(source, 1)
    write_index(address, build_index(address))
    assert len(refs(open_all(source, 1))) == 60


def test_damage_at_the_end_is_found_with_an_index_too(tmp_path: Path) -> None:
    source = Shards(write_counts(tmp_path, [6], indexed=True))
    path = tmp_path / "part-0.tar"
    index = build_index(str(path))
    path.write_bytes(path.read_bytes()[: 6 * 1024])
    write_index(str(path), type(index)(6 * 1024, index.keys, index.offsets, index.checksums))
    first, last = open_all(source, 2)
    assert len(refs([first])) == 3
    with pytest.raises(ShardError, match="end blocks"):
        refs([last])


def test_bad_settings_and_missing_shards(tmp_path: Path) -> None:
    for urls in ([], "pipe:cat x", "ftp://host/a.tar"):
        with pytest.raises(ConfigError):
            Shards(urls)
    source = Shards(f"{tmp_path}/none-{{0..3}}.tar")
    with pytest.raises(ShardError, match=r"none-0\.tar: no such file"):
        source.reading(World(), seed=0, epoch=0)


@pytest.mark.parametrize("indexed", [True, False])
def test_an_empty_shard_is_an_error_that_names_it(tmp_path: Path, indexed: bool) -> None:
    source = Shards(write_counts(tmp_path, [3, 0], indexed=indexed), shuffle=False)
    with pytest.raises(ShardError, match=r"part-1\.tar, byte offset 0: the shard holds no sample"):
        list(source.reading(World(), seed=0, epoch=0).records())
