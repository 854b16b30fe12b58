"""Damaged shards: each is one ShardError with the place and the way out; no sample is lost in silence."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tars import BLOCK, REPEATABLE, chat_files, tar_bytes

from odb_stream.errors import ShardError
from odb_stream.shards.tar import read_samples

LONG = "n" * 150
FILES = [*chat_files(3), ("k.0.jpg", b"j" * 1300), ("k.json", b"{}"), (f"{LONG}.txt", b"t" * 600), ("last.txt", b"l")]
WHOLE = tar_bytes(FILES)
KEYS = ["00000", "00001", "00002", "k", LONG, "last"]
# 512-byte blocks up to the last file's data; then come the two end blocks and padding.
CONTENT = WHOLE.rstrip(b"\0").__len__() // BLOCK * BLOCK + BLOCK


def read(path: Path, data: bytes, offset: int = 0) -> list[str]:
    path.write_bytes(data)
    return [sample.key for sample in read_samples(str(path), offset=offset)]


def test_the_whole_shard_reads(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tar", WHOLE) == KEYS


@pytest.mark.parametrize("cut", range(0, len(WHOLE), BLOCK))
def test_a_cut_at_any_block_is_an_error_or_loses_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tar"
    if cut >= CONTENT + 2 * BLOCK:
        assert read(path, WHOLE[:cut]) == KEYS
    else:
        with pytest.raises(ShardError, match=r"a\.tar, byte offset \d+: .*; .*write"):
            read(path, WHOLE[:cut])


@settings(REPEATABLE, max_examples=200)
@given(cut=st.integers(1, CONTENT + 2 * BLOCK - 1))
def test_a_cut_at_any_byte_is_an_error(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    with pytest.raises(ShardError):
        read(tmp_path_factory.getbasetemp() / "cut.tar", WHOLE[:cut])


@settings(REPEATABLE, max_examples=200)
@given(at=st.integers(0, CONTENT // BLOCK - 1), junk=st.binary(min_size=1, max_size=BLOCK), zero=st.booleans())
def test_an_overwritten_block_never_loses_a_sample(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes, zero: bool
) -> None:
    block = bytes(BLOCK) if zero else junk.ljust(BLOCK, b"\xff")
    damaged = WHOLE[: at * BLOCK] + block + WHOLE[(at + 1) * BLOCK :]
    try:
        keys = read(tmp_path_factory.getbasetemp() / "junk.tar", damaged)
    except ShardError:
        return
    # The block was data (or the text of a long name), so the tar still has every member.
    assert len(keys) == len(KEYS)


def header_offset(name: str) -> int:
    return WHOLE.index(name.encode() + b"\0")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"no tar at all" * 100, "not a tar file"),
        (b"short", "not a tar file"),
        (gzip.compress(WHOLE), "compressed"),
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
    path = tmp_path / "a.tar"
    path.write_bytes(WHOLE[: header_offset("last.txt") + BLOCK])
    read_on = (sample.key for sample in read_samples(str(path)))
    assert [next(read_on) for _ in KEYS[:-1]] == KEYS[:-1]
    with pytest.raises(ShardError, match=r"data of member 'last\.txt' is cut"):
        next(read_on)
    # Cut before a header, the sample may lack members: it is not handed on.
    path.write_bytes(WHOLE[: header_offset("k.json")])
    read_on = (sample.key for sample in read_samples(str(path)))
    assert [next(read_on) for _ in range(3)] == KEYS[:3]
    with pytest.raises(ShardError):
        next(read_on)


def test_the_end_is_checked_when_reading_begins_inside(tmp_path: Path) -> None:
    offset = header_offset("k.0.jpg")
    assert read(tmp_path / "a.tar", WHOLE, offset) == KEYS[3:]
    with pytest.raises(ShardError, match=f"byte offset {header_offset('last.txt')}: .*end blocks"):
        read(tmp_path / "a.tar", WHOLE[: header_offset("last.txt")], offset)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a.json", b""), ("b.json", b""), ("a.txt", b"")], r"1024: member 'a.txt' of key 'a': the key comes back"),
        ([("a.json", b""), ("a.JSON", b"")], r"512: member 'a.JSON' of key 'a' is there twice"),
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
