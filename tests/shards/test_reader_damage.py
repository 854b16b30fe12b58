"""Damaged shards: strictly each is one ShardError with the place and the way out; otherwise every loss is reported.

Whole samples are kept, byte for byte, and nothing is handed on in part.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from damaged_tars import Damage, damages, read_tolerantly
from hypothesis import given, settings
from make_tars import BLOCK, chat_files, read_one, tar_bytes, write_tar_file

from odb_stream.errors import ShardError
from odb_stream.shards.index import ShardIndex, index_of
from odb_stream.shards.ranges import ranges_of
from odb_stream.shards.reader import read_ranges, read_samples, read_shard
from odb_stream.shards.tar import grouping
from odb_stream.shards.tar.grouping import Item, LostSample, TarSample

LONG = "n" * 150
FILES = [*chat_files(3), ("k.0.jpg", b"j" * 1300), ("k.json", b"{}"), (f"{LONG}.txt", b"t" * 600), ("last.txt", b"l")]
WHOLE = tar_bytes(FILES)
KEYS = ["00000", "00001", "00002", "k", LONG, "last"]
# 512-byte blocks up to the last file's data; then come the two end blocks and padding.
CONTENT = WHOLE.rstrip(b"\0").__len__() // BLOCK * BLOCK + BLOCK


def read(path: Path, data: bytes, offset: int = 0) -> list[str]:
    path.write_bytes(data)
    return [sample.key for sample in read_samples(str(path), offset=offset)]


@pytest.mark.parametrize("cut", range(0, len(WHOLE) + 1, BLOCK))
def test_a_cut_at_any_block_is_an_error_or_loses_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tar"
    if cut >= CONTENT + 2 * BLOCK:
        assert read(path, WHOLE[:cut]) == KEYS
    else:
        with pytest.raises(ShardError, match=r"a\.tar, byte offset \d+: .*; .*write"):
            read(path, WHOLE[:cut])


def header_offset(name: str) -> int:
    return WHOLE.index(name.encode() + b"\0")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"no tar at all" * 100, "not a tar file"),
        (b"short", "not a tar file"),
        (WHOLE[: header_offset("k.json") + 100], "cut in a header"),
        (WHOLE[: header_offset("k.json")], "lacks its two end blocks"),
        (WHOLE[: header_offset("k.json") + BLOCK + 1], "data of member 'k.json' is cut"),
        (WHOLE[: header_offset("k.json") + BLOCK + 2], "data of member 'k.json' is cut"),
        (WHOLE[: CONTENT + BLOCK], "lacks its two end blocks"),
        (WHOLE.replace(b"k.json\0", b"?.json\0"), "a tar header is corrupt"),
        (WHOLE[:CONTENT] + bytes(BLOCK) + WHOLE, "data follows the first end block"),
        (WHOLE + WHOLE, "data follows the first end block"),
        (WHOLE + bytes(3 << 20) + b"x", "data follows the first end block"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(ShardError, match=rf"a\.tar, byte offset \d+: .*{words}"):
        read(tmp_path / "a.tar", data)


def test_a_sample_that_is_whole_is_handed_on_before_the_damage(tmp_path: Path) -> None:
    for cut, whole, words in (
        (header_offset("last.txt") + BLOCK, KEYS[:-1], r"data of member 'last\.txt' is cut"),
        # Cut before a header, the sample may lack members: it is not handed on.
        (header_offset("k.json"), KEYS[:3], "end blocks"),
    ):
        (tmp_path / "a.tar").write_bytes(WHOLE[:cut])
        samples = read_samples(f"{tmp_path}/a.tar")
        assert [next(samples).key for _ in whole] == whole
        with pytest.raises(ShardError, match=words):
            next(samples)


def test_the_end_is_checked_when_reading_begins_inside(tmp_path: Path) -> None:
    offset = header_offset("k.0.jpg")
    assert read(tmp_path / "a.tar", WHOLE, offset) == KEYS[3:]
    with pytest.raises(ShardError, match=f"byte offset {header_offset('last.txt')}: .*end blocks"):
        read(tmp_path / "a.tar", WHOLE[: header_offset("last.txt")], offset)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a.json", b""), ("b.json", b""), ("a.txt", b"")], r"1024: member 'a.txt' of key 'a': the key comes back"),
        ([("a.json", b""), ("a.JSON", b"")], r"512: member 'a.JSON' of key 'a' appears twice"),
        ([("a.json", b""), ("readme", b"")], r"512: member 'readme' has no key or no extension; name it KEY.EXT"),
        ([("a.", b"")], "has no key or no extension"),
        ([(".json", b"")], "'.json' has no key"),
        ([("d/.0.jpg", b"")], "has no key"),
        ([("a.json", b""), ("a.pkl", b"")], r"512: member 'a.pkl' of key 'a' is a pickle, which may run code; store"),
        ([("a.x.PTH", b"")], "pickle"),
        ([("a.__bad__", b"")], "reserved"),
        ([("a.__key__", b"")], "reserved"),
    ],
)
def test_members_that_would_be_lost_or_merged_are_errors(
    tmp_path: Path, files: list[tuple[str, bytes]], words: str
) -> None:
    with pytest.raises(ShardError, match=words):
        read(tmp_path / "a.tar", tar_bytes(files))


# ---- Any damage at any place ----

def read_some(address: str, index: ShardIndex, numbers: Iterable[int]) -> Iterator[Item]:
    """Samples of an indexed shard, whole or lost."""
    return read_ranges(address, index, ranges_of(numbers), skip_damaged=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "a.tar"


@settings(max_examples=400)
@given(damage=damages())
def test_any_damage_is_an_error_or_costs_only_the_samples_around_it(path: Path, damage: Damage) -> None:
    path.write_bytes(damage.whole)
    samples = list(read_samples(str(path)))
    path.write_bytes(damage.after)
    if damage.visible:
        strictly_it_is_an_error_or_costs_nothing(path, samples)
        without_an_index_only_whole_samples_around_it_are_lost(path, damage, samples)
    if damage.part == "data":
        without_an_index_one_member_changes(damage, samples)
    with_an_index_exactly_the_samples_that_were_hit_are_lost(path, damage, samples)


def strictly_it_is_an_error_or_costs_nothing(path: Path, samples: list[TarSample]) -> None:
    read = []
    message = ""
    try:
        for sample in read_samples(str(path)):
            read.append(sample)
    except ShardError as error:
        message = str(error)
    assert read == (samples[: len(read)] if message else samples)
    assert message.startswith(f"{path}, byte offset ") or not message


def without_an_index_only_whole_samples_around_it_are_lost(
    path: Path, damage: Damage, samples: list[TarSample]
) -> None:
    items = read_tolerantly(damage.after)
    kept = [(item.key, item.members) for item in items if isinstance(item, TarSample)]
    all_of_them = [(sample.key, sample.members) for sample in samples]
    missing = [number for number, sample in enumerate(all_of_them) if sample not in kept]
    assert [sample for sample in all_of_them if sample in kept] == kept
    assert [item.index for item in items] == list(range(len(items)))
    lost = [item for item in items if isinstance(item, LostSample)]
    assert bool(missing) <= bool(lost)
    assert all(item.drop.damaged and item.drop.detail for item in lost)
    assert missing == list(range(missing[0], missing[-1] + 1)) if missing else True
    if len(damage.after) == len(damage.whole):
        # The sample before, the one that was hit, and the one or two after, whose first header or name may be gone.
        assert len(missing) <= 4
    else:
        assert all(sample.end > damage.at for sample in samples[missing[0] + 1 :]) if missing else True
    for item in items:
        if isinstance(item, TarSample):
            assert read_one(str(path), item.offset, item.index) == item


def without_an_index_one_member_changes(damage: Damage, samples: list[TarSample]) -> None:
    read = [item for item in read_tolerantly(damage.after) if isinstance(item, TarSample)]
    assert [(item.key, list(item.members)) for item in read] == [(one.key, list(one.members)) for one in samples]
    pairs = zip(samples, read, strict=True)
    assert sum(item.members[name] != data for one, item in pairs for name, data in one.members.items()) <= 1


def with_an_index_exactly_the_samples_that_were_hit_are_lost(
    path: Path, damage: Damage, samples: list[TarSample]
) -> None:
    index = index_of(samples, len(damage.after))
    items = list(read_some(str(path), index, range(index.samples)))
    assert [item.index for item in items] == list(range(len(samples)))
    for sample, item in zip(samples, items, strict=True):
        sound = damage.after[sample.offset : sample.end] == damage.whole[sample.offset : sample.end]
        if sound or isinstance(item, TarSample):
            assert item == sample
        else:
            assert item.found.key == sample.key
            assert item.found.members == {}
            assert (item.found.offset, item.drop.damaged) == (sample.offset, True)
    # Any part of it reads the same.
    assert list(read_some(str(path), index, range(1, index.samples, 2))) == items[1::2]


FOUR = [
    ("a.json", b"{}"),
    ("a.0.jpg", b"x" * 600),
    ("b.json", b"{}"),
    ("b.txt", b"t"),
    ("c.json", b"{}"),
    ("d.txt", b"d"),
]
FOUR_WHOLE = tar_bytes(FOUR)


def overwritten(*names: str, files: list[tuple[str, bytes]] = FOUR) -> bytes:
    """The shard of these files with the headers of some of them made unreadable."""
    data = tar_bytes(files)
    for name in names:
        data = data.replace(name.encode() + b"\0", b"?" * len(name) + b"\0", 1)
    return data


def keys(items: Iterable[Item]) -> list[str]:
    """Keys in the order of their numbers; those of lost samples in brackets."""
    return [item.key if isinstance(item, TarSample) else f"({item.found.key})" for item in items]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (FOUR_WHOLE, ["a", "b", "c", "d"]),
        (overwritten("a.json"), ["(a)", "b", "c", "d"]),
        (overwritten("a.0.jpg"), ["(a)", "(b)", "c", "d"]),
        (overwritten("b.json"), ["(a)", "(b)", "c", "d"]),
        (overwritten("b.txt"), ["a", "(b)", "(c)", "d"]),
        (overwritten("d.txt"), ["a", "b", "(c)"]),
        (overwritten("a.json", "b.json"), ["(a)", "(b)", "c", "d"]),
        (overwritten("a.json", "a.0.jpg", "b.json", "b.txt", "c.json", "d.txt"), ["()"]),
        # The same key goes on after the damage: one loss, and what comes next begins after a sound header.
        (overwritten("a.0.jpg", files=[*FOUR[:2], ("a.txt", b"t"), *FOUR[2:]]), ["(a)", "b", "c", "d"]),
        # The text before the next header may be the name that this header lacks.
        (overwritten("b.json", files=[*FOUR[:2], ("b.json", b"{}\n"), *FOUR[4:]]), ["(a)", "(c)", "(d)"]),
        (FOUR_WHOLE[:512], ["(a)"]),
        (FOUR_WHOLE[:513], ["(a)"]),
        (FOUR_WHOLE[: FOUR_WHOLE.index(b"c.json")], ["a", "(b)"]),
        (FOUR_WHOLE[: FOUR_WHOLE.index(b"c.json") + 600], ["a", "b", "(c)"]),
        (FOUR_WHOLE[: FOUR_WHOLE.index(b"d.txt") + 1024], ["a", "b", "c", "(d)"]),
        (FOUR_WHOLE[: FOUR_WHOLE.index(b"d.txt") + 1024 + 512], ["a", "b", "c", "d"]),
        (tar_bytes([*FOUR[:2], ("README", b""), *FOUR[2:]]), ["(a)", "(b)", "c", "d"]),
        (tar_bytes([*FOUR[:2], ("a.pkl", b""), *FOUR[2:]]), ["(a)", "b", "c", "d"]),
        (tar_bytes([*FOUR[:2], ("a.json", b"")]), ["(a)"]),
        (tar_bytes([*FOUR[:4], ("a.json", b""), *FOUR[4:]]), ["a", "b", "(a)", "c", "d"]),
    ],
)  # fmt: skip
def test_what_is_lost_around_damage(data: bytes, expected: list[str]) -> None:
    assert keys(read_tolerantly(data)) == expected


def test_a_shard_that_cannot_be_entered_is_one_loss(tmp_path: Path) -> None:
    for data in (b"", b"\x1f\x8b" + bytes(2000), b"no tar" * 1000, tar_bytes([]), tar_bytes([(".gitkeep", b"")])):
        (tmp_path / "a.tar").write_bytes(data)
        (item,) = read_shard(f"{tmp_path}/a.tar", skip_damaged=True)
        assert isinstance(item, LostSample)
        assert (item.found.key, item.index, item.found.offset, item.drop.damaged) == ("", 0, 0, True)


def test_halves_of_a_sample_are_never_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = write_tar_file(tmp_path / "apart.tar", [("a.json", b"{}"), *chat_files(3), ("a.0.jpg", b"x")])
    again = write_tar_file(tmp_path / "again.tar", [("a.json", b"{}"), *chat_files(3), ("a.json", b"{}")])
    assert keys(read_shard(apart, skip_damaged=True)) == ["(a)", "00000", "00001", "00002", "(a)"]
    assert keys(read_shard(again, skip_damaged=True)) == ["a", "00000", "00001", "00002", "(a)"]
    monkeypatch.setattr(grouping, "HELD_BACK", 4)
    assert keys(read_shard(apart, skip_damaged=True)) == ["(a)", "00000", "00001", "00002", "(a)"]
    monkeypatch.setattr(grouping, "HELD_BACK", 3)
    assert keys(read_shard(again, skip_damaged=True)) == ["a", "00000", "00001", "00002", "(a)"]
    with pytest.raises(ShardError, match=r"apart\.tar, byte offset 4096: .*comes back.*handed on as sample 0"):
        keys(read_shard(apart, skip_damaged=True))


def test_an_index_of_another_shard_is_an_error_not_a_loss(tmp_path: Path) -> None:
    address = write_tar_file(tmp_path / "a.tar", chat_files(4))
    samples = list(read_samples(address))
    write_tar_file(tmp_path / "a.tar", chat_files(4, prefix="b"))
    with pytest.raises(ShardError, match=r"key '00001', starts at byte offset 1024.*`odb-stream index` again"):
        list(read_some(address, index_of(samples, 0), [1, 2]))
    write_tar_file(tmp_path / "a.tar", chat_files(6))
    with pytest.raises(ShardError, match="holds more than the 4 samples"):
        list(read_some(address, index_of(samples, 0), range(4)))
    mixed_up = ShardIndex(0, ("00001", "00000"), (1024, 0), (0, 0))
    with pytest.raises(ShardError, match="not in order"):
        list(read_some(address, mixed_up, range(2)))
