"""Reading many samples again: the same as one by one, neighbours from one stream, far ones several at once."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tars import overwrite_blocks, tar_bytes, watch_streams, write_tar_file

from odb_stream.config import World
from odb_stream.errors import ShardError
from odb_stream.sample import START, SampleRef
from odb_stream.shards.index import index_address
from odb_stream.shards.reader import SampleStart
from odb_stream.shards.refetch import coalesced_starts
from odb_stream.sources.shard_reading import ShardReading
from odb_stream.sources.shards import Shards

KINDS = [(on_damage, indexed) for on_damage in ("error", "drop") for indexed in (True, False)]


def shards_of(folder: Path, sizes: list[list[int]], *, indexed: bool) -> str:
    """Shards whose samples hold so many bytes, with one member or two; returns the glob that names them."""
    for shard, lengths in enumerate(sizes):
        files = []
        for number, length in enumerate(lengths):
            files.append((f"{number:03d}.txt", b"t" * length))
            if length % 2:
                files.append((f"{number:03d}.0.jpg", bytes([number % 250]) * length))
        write_tar_file(folder / f"part-{shard}.tar", files, indexed=indexed)
    return f"{folder}/part-*.tar"


def open_one(urls: str, on_damage: str = "error") -> ShardReading:
    return Shards(urls, on_damage=on_damage).reading(World(), seed=0, epoch=0)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.lists(st.sampled_from([1, 600, 2000, 5001]), min_size=1, max_size=12), min_size=1, max_size=3),
    kind=st.sampled_from(KINDS),
    data=st.data(),
)
def test_many_at_once_are_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], kind: tuple[str, bool], data: st.DataObject
) -> None:
    on_damage, indexed = kind
    urls = shards_of(tmp_path_factory.mktemp("shards"), sizes, indexed=indexed)
    reading = open_one(urls, on_damage)
    whole = list(reading.records())
    chosen = data.draw(st.lists(st.sampled_from(whole), max_size=20))
    epochs = data.draw(st.lists(st.integers(0, 2), min_size=len(chosen), max_size=len(chosen)))
    held = [(record.ref, epoch) for record, epoch in zip(chosen, epochs, strict=True)]
    together = reading.fetch_all(held)
    assert together == [replace(record, position=START, epoch=e) for record, e in zip(chosen, epochs, strict=True)]
    assert together == [reading.fetch_all([one])[0] for one in held]


@pytest.mark.parametrize(("on_damage", "indexed"), KINDS)
def test_neighbours_come_from_one_stream_and_far_ones_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_damage: str, indexed: bool
) -> None:
    # One block of header and one of data: samples of 1 KiB, but for one of 4 KiB.
    reading = open_one(shards_of(tmp_path, [[2] * 5 + [3584] + [2] * 4, [2] * 9], indexed=indexed), on_damage)
    records = {(record.ref.shard, record.ref.index): record for record in reading.records()}
    opened = watch_streams(monkeypatch)

    def streams(*places: tuple[int, int]) -> list[tuple[str, int]]:
        opened.clear()
        chosen = [records[place] for place in places]
        found = reading.fetch_all([(record.ref, 0) for record in chosen])
        assert [(one.ref, one.members) for one in found] == [(one.ref, one.members) for one in chosen]
        return sorted(opened)

    assert streams((1, 5), (1, 2), (1, 3)) == [("part-1.tar", 2048)]  # two left out
    assert streams((1, 6), (1, 3)) == [("part-1.tar", 3072)]
    assert streams((1, 7), (1, 3)) == [("part-1.tar", 3072), ("part-1.tar", 7168)]  # three left out
    assert streams((0, 1), (1, 1), (0, 0)) == [("part-0.tar", 0), ("part-1.tar", 1024)]
    assert streams((0, 5), (0, 6), (0, 4)) == [("part-0.tar", 4096)]  # a large one is wanted, not left out
    assert streams((0, 4), (0, 6)) == [("part-0.tar", 4096), ("part-0.tar", 9216)]
    assert streams((1, 4), (1, 4)) == [("part-1.tar", 4096)]
    assert streams() == []


def test_without_an_index_what_lies_in_between_counts_as_the_mean() -> None:
    for starts, streams in (
        ([(0, 0), (9000, 1), (13000, 3)], [[(0, 0), (9000, 1), (13000, 3)]]),
        ([(0, 0), (6144, 3)], [[(0, 0)], [(6144, 3)]]),
        ([(0, 7), (512, 7)], [[(0, 7), (512, 7)]]),
    ):
        assert coalesced_starts(SampleStart(*start) for start in starts) == streams


@pytest.mark.parametrize(("on_damage", "indexed"), KINDS)
def test_what_is_left_out_may_be_damaged_and_what_is_wanted_may_not(
    tmp_path: Path, on_damage: str, indexed: bool
) -> None:
    path = Path(shards_of(tmp_path, [[2] * 8], indexed=indexed).replace("*", "0"))
    reading = open_one(str(path), on_damage)
    records = sorted(reading.records(), key=lambda record: record.ref.index)
    overwrite_blocks(path, 4)
    for wanted in [[0, 3], [0, 1, 3, 4]] if indexed else [[0, 3]]:
        found = reading.fetch_all([(records[number].ref, 0) for number in wanted])
        assert [record.ref.index for record in found] == wanted
    for wanted in ([2], [0, 2, 5]):
        with pytest.raises(ShardError, match=r"part-0\.tar, byte offset 2048: "):
            reading.fetch_all([(records[number].ref, 0) for number in wanted])


@pytest.mark.parametrize(("on_damage", "indexed"), KINDS)
def test_references_of_other_shards_are_refused(tmp_path: Path, on_damage: str, indexed: bool) -> None:
    reading = open_one(shards_of(tmp_path, [[2] * 4], indexed=indexed), on_damage)
    good = SampleRef(0, 0, 0, 0)
    with pytest.raises(ShardError, match="there is no shard 4, only 1 shards; give the same shards"):
        reading.fetch_all([(good, 0), (good._replace(shard=4), 0)])
    with pytest.raises(ShardError, match=r"part-0\.tar.*sample 3.*byte offset 2560|part-0\.tar, byte offset 2560: "):
        reading.fetch_all([(good, 0), (SampleRef(0, 0, 3, 2560), 0)])


@pytest.mark.parametrize(
    ("indexed", "spoil", "words"),
    [
        (False, lambda path: path.write_bytes(tar_bytes([("z.txt", b"z")])), r", byte offset \d+"),
        (True, lambda path: path.write_bytes(path.read_bytes().replace(b"tt", b"tu")), ".* not those that were"),
        (True, lambda path: Path(index_address(str(path))).unlink(), r"\.idx\.json: the index went away"),
    ],
    ids=["another shard", "changed under its index", "an index that went away"],
)
def test_the_first_error_ends_all_reading(
    tmp_path: Path, indexed: bool, spoil: Callable[[Path], None], words: str
) -> None:
    reading = open_one(shards_of(tmp_path, [[2] * 3 for _ in range(20)], indexed=indexed))
    held = [(record.ref, 0) for record in reading.records()]
    spoil(tmp_path / "part-7.tar")
    random.Random(0).shuffle(held)
    with pytest.raises(ShardError, match=rf"part-7\.tar{words}"):
        reading.fetch_all(held)
