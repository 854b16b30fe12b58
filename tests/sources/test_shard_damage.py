"""Damaged shards as a source: losses are records like any other, read once, and resume stays exact."""

import io
import logging
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tars import BLOCK, chat, chat_files, overwrite_blocks, tar_bytes, watch_streams, write_tar_file
from remaining_support import check_cuts

from odb_stream import storage
from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError
from odb_stream.loader.startup import plan_in_words
from odb_stream.sample import Drop, Record
from odb_stream.shards import index as index_module
from odb_stream.shards.index import index_address, write_index
from odb_stream.shards.reader import build_index
from odb_stream.shards.writer import write_shards
from odb_stream.sources.shard_reading import ShardReading
from odb_stream.sources.shards import Shards
from odb_stream.storage.options import Storage


def skipping(folder: Path, ranks: int = 1, *, shuffle: bool = False, epoch: int = 0) -> list[ShardReading]:
    source = Shards(f"{folder}/part-*.tar", shuffle=shuffle, on_damage="drop").open()
    return [source.reading(World(rank, ranks), seed=5, epoch=epoch) for rank in range(ranks)]


def lost(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.key, record.damage.reason) for record in records if record.damage is not None]


def shard_of(folder: Path, number: int, samples: int, *, indexed: bool) -> Path:
    """A shard with samples of one and of two members, and its index."""
    files = []
    for name, data in chat_files(samples, prefix=f"s{number}/"):
        files.append((name, data))
        if int(name[-6]) % 2:
            files.append((name.replace("json", "0.jpg"), b"jpeg" * 200))
    path = folder / f"part-{number}.tar"
    write_tar_file(path, files, indexed=indexed)
    return path


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    blocks=st.lists(st.integers(0, 30), max_size=3),
    indexed=st.booleans(),
    shuffle=st.booleans(),
    ranks=st.integers(1, 4),
)
def test_every_item_falls_to_one_rank_and_resume_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int], blocks: list[int], indexed: bool, shuffle: bool, ranks: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("shards")
    for number, samples in enumerate(counts):
        overwrite_blocks(shard_of(folder, number, samples, indexed=indexed), *blocks[: number + 1])
    readings = skipping(folder, ranks, shuffle=shuffle)
    together = []
    for reading in readings:
        whole = check_cuts(reading)
        together += whole
        assert (reading.samples is None) != indexed
        for record in whole:
            if record.damage is None:
                again = reading.fetch_all([(record.ref, record.epoch)])[0]
                assert (again.key, again.members, again.ref) == (record.key, record.members, record.ref)
            elif indexed:
                with pytest.raises(ShardError):
                    reading.fetch_all([(record.ref, record.epoch)])
    (alone,) = skipping(folder)
    expected = [(record.ref, record.key, record.members, record.damage) for record in alone.records()]
    dealt = [(record.ref, record.key, record.members, record.damage) for record in together]
    assert sorted(dealt, key=lambda one: one[0]) == sorted(expected, key=lambda one: one[0])
    if indexed:
        assert len(dealt) == sum(counts)


def test_a_loss_is_a_record_without_members(tmp_path: Path) -> None:
    overwrite_blocks(shard_of(tmp_path, 0, 6, indexed=True), 2)
    records = list(skipping(tmp_path, epoch=3)[0].records())
    assert [record.ref.index for record in records] == list(range(6))
    (lost,) = [record for record in records if record.damage is not None]
    assert (lost.key, lost.ref.index, lost.ref.offset, lost.epoch, dict(lost.members)) == ("s0/00001", 1, 1024, 3, {})
    assert lost.damage is not None
    assert lost.damage.damaged
    assert lost.damage.reason == "damaged_tar"
    assert f"{tmp_path}/part-0.tar, byte offset 1024: " in lost.damage.detail
    with pytest.raises(ShardError, match="byte offset 1024"):
        list(Shards(f"{tmp_path}/part-*.tar").reading(World(), seed=0, epoch=0).records())


def test_changed_data_are_found_with_an_index_only(tmp_path: Path) -> None:
    path = shard_of(tmp_path, 0, 4, indexed=True)
    path.write_bytes(path.read_bytes().replace(b"message s0/00002", b"message s0/0000X"))
    (reading,) = skipping(tmp_path)
    assert lost(list(reading.records())) == [("s0/00002", "checksum")]
    strict = Shards(str(path), shuffle=False).reading(World(), seed=0, epoch=0)
    with pytest.raises(ShardError, match=r"part-0\.tar, byte offset 3584: sample 2: .*indexed.*; copy the shard again"):
        list(strict.records())
    Path(index_address(str(path))).unlink()
    assert lost(list(skipping(tmp_path)[0].records())) == []


def test_shards_that_cannot_be_entered(tmp_path: Path) -> None:
    shard_of(tmp_path, 0, 2, indexed=False)
    (tmp_path / "part-1.tar").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(5000))
    shard_of(tmp_path, 2, 2, indexed=False)
    for ranks in (1, 2, 5):
        records = [record for reading in skipping(tmp_path, ranks) for record in reading.records()]
        assert lost(records) == [("", "unreadable_shard")]
        assert len(records) == 5
    # With an index the samples are known that it should have held.
    path = shard_of(tmp_path, 1, 3, indexed=True)
    path.write_bytes(b"?" * path.stat().st_size)
    records = [record for reading in skipping(tmp_path, 2) for record in reading.records()]
    assert sorted(lost(records)) == [(f"s1/0000{number}", "damaged_tar") for number in range(3)]


def test_what_is_no_damage_stays_an_error(tmp_path: Path) -> None:
    path = shard_of(tmp_path, 0, 4, indexed=True)
    (reading,) = skipping(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(BLOCK))
    with pytest.raises(ShardError, match="stale"):
        list(reading.records())
    path.unlink()
    with pytest.raises(ShardError, match="no such file"):
        list(reading.records())
    with pytest.raises(ConfigError, match="on_damage"):
        Shards("a.tar", on_damage="skip")  # type: ignore[arg-type]


class Breaking(io.BytesIO):
    """A stream that breaks off with an error, as a disk or a connection does."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > BLOCK:
            raise OSError(5, "Input/output error")
        return super().read(size)


def test_a_read_that_fails_is_never_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard_of(tmp_path, 0, 4, indexed=False)
    (reading,) = skipping(tmp_path)
    monkeypatch.setattr(storage, "open_stream", lambda *args: Breaking(path.read_bytes()))
    with pytest.raises(ShardError, match=r"part-0\.tar, byte offset 575: cannot be read \(Input/output error\)"):
        list(reading.records())


@pytest.mark.parametrize("on_damage", ["error", "drop"])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_shard_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_damage: str, indexed: bool
) -> None:
    path = shard_of(tmp_path, 0, 9, indexed=indexed)
    if on_damage == "drop":
        overwrite_blocks(path, 5, 6)
    reading = Shards(str(path), on_damage=on_damage).reading(World(), seed=0, epoch=0)  # type: ignore[arg-type]
    opened = watch_streams(monkeypatch)
    records = list(reading.records())
    assert opened == [(path.name, 0)]
    opened.clear()
    record = next(record for record in records[3:] if record.damage is None)
    reading.fetch_all([(record.ref, 0)])
    assert opened == [(path.name, record.ref.offset)]


def test_an_index_is_read_once_in_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        shard_of(tmp_path, number, 8, indexed=True)
    read: list[str] = []
    read_index = index_module.read_index

    def watch(address: str, options: Storage, *, may_be_cut: bool) -> object:
        read.append(address)
        return read_index(address, options, may_be_cut=may_be_cut)

    monkeypatch.setattr(index_module, "read_index", watch)
    source = Shards(f"{tmp_path}/part-*.tar")
    for rank in range(2):
        list(source.reading(World(rank, 2), seed=5, epoch=0).records())
        assert len(read) == len(set(read)) == 2
        read.clear()


def test_the_opener_drops_or_raises_what_is_not_in_the_format(tmp_path: Path) -> None:
    write_tar_file(tmp_path / "part-0.tar", [("a.json", b"{")])
    (record,) = skipping(tmp_path)[0].records()
    dropped = pickle.loads(pickle.dumps(Shards("a.tar", on_damage="drop").opener()))(record)
    assert isinstance(dropped, Drop)
    assert (dropped.reason, dropped.damaged) == ("bad_json", True)
    with pytest.raises(ShardError) as raised:
        Shards("a.tar").opener()(record)
    assert str(raised.value) == dropped.detail


def test_the_plan_in_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        write_tar_file(tmp_path / f"part-{number}.tar", [(f"{name}.json", chat("x")) for name in "abcde"])
    source = Shards(f"{tmp_path}/part-*.tar")

    def words(world: World) -> str:
        return plan_in_words(world, source.open().reading(world, seed=0, epoch=0).plan)

    assert words(World(1, 2)) == "rank 1 of 2 reads 1 shards as a whole because some have no index"
    with caplog.at_level(logging.WARNING):
        told = words(World(2, 4))
    assert told == "rank 2 of 4 reads 3 shards and keeps 1 sample in 4 because some have no index"
    assert "4 times the traffic" in caplog.text
    for number in range(3):
        write_index(f"{tmp_path}/part-{number}.tar", build_index(f"{tmp_path}/part-{number}.tar"))
    assert words(World(1, 2)) == "rank 1 of 2 reads 8 samples in 2 shards, split by their indexes"
    reading = source.open().reading(World(1, 2), seed=0, epoch=0)
    assert len(list(reading.records())) == reading.samples == 8


def test_a_tar_that_misses_one_end_block_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tar_bytes(chat_files(2))
    (tmp_path / "part-0.tar").write_bytes(data[: 4 * BLOCK + BLOCK])
    with caplog.at_level(logging.WARNING):
        records = list(skipping(tmp_path)[0].records())
    assert [record.damage for record in records] == [None, None]
    assert "lacks its two end blocks" in caplog.text


@pytest.mark.parametrize("cut", [0, 1, 700, 1024, 5000, 9 * 1024 - 1, 20 * 1024, 20 * 1024 + 700])
def test_an_indexed_shard_that_was_cut_loses_exactly_what_is_missing(tmp_path: Path, cut: int) -> None:
    """20 samples of one member each: 1,024 bytes a sample. Fails with: a cut shard taken for a stale index."""
    samples = [(f"{number:03d}", {"txt": b"x" * (10 + number)}) for number in range(20)]
    (written,) = write_shards(samples, str(tmp_path), samples_per_shard=20)
    write_index(written.address, build_index(written.address))
    Path(written.address).write_bytes(Path(written.address).read_bytes()[:cut])
    with pytest.raises(ShardError, match="index is stale"):
        Shards(written.address).open()
    reading = Shards(written.address, on_damage="drop", shuffle=False).reading(World(), seed=0, epoch=0)
    records = list(reading.records())
    assert [record.ref.index for record in records] == list(range(20))
    # What a sample's bytes were padded with may be missing.
    whole = sum(1024 * number + 512 + 10 + number <= cut for number in range(20))
    assert [record.damage is None for record in records] == [True] * whole + [False] * (20 - whole)
    assert all(record.members == samples[record.ref.index][1] for record in records[:whole])
    for record in records:
        assert record.damage is None or record.damage.damaged
