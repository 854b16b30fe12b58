"""Writing shards: equal bytes for equal samples, whole files only, and nothing that could not be read back."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_tars import chat, write_chats

from odb_stream.errors import ConfigError, ShardError
from odb_stream.shards.index import write_index
from odb_stream.shards.reader import build_index, read_samples
from odb_stream.shards.writer import RawSample, WrittenShard, jsonl_samples, read_jsonl, write_shards


def samples(count: int) -> Iterator[RawSample]:
    for number in range(count):
        yield f"{number:08d}", {"json": chat(f"message {number}"), "0.jpg": b"j"}


@settings(max_examples=30)
@given(count=st.integers(1, 20), size=st.integers(1, 8))
def test_all_samples_are_in_full_shards_in_order(
    tmp_path_factory: pytest.TempPathFactory, count: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("out")
    written = write_shards(samples(count), str(folder), samples_per_shard=size)
    assert [shard.samples for shard in written[:-1]] == [size] * (len(written) - 1)
    read = [sample for shard in written for sample in read_samples(shard.address)]
    assert [(sample.key, sample.members) for sample in read] == list(samples(count))
    assert sorted(os.listdir(folder)) == [f"shard-{number:06d}.tar" for number in range(len(written))]


def test_equal_samples_give_equal_bytes_whatever_the_order_of_their_members(tmp_path: Path) -> None:
    (one,) = write_shards([("k", {"json": b"{}", "0.jpg": b"j"})], f"{tmp_path}/a", samples_per_shard=9)
    (two,) = write_shards([("k", {"0.jpg": b"j", "json": b"{}"})], f"{tmp_path}/b", samples_per_shard=9, prefix="p")
    assert Path(one.address).read_bytes() == Path(two.address).read_bytes()
    assert two == WrittenShard(f"{tmp_path}/b/p-000000.tar", 1)


def test_long_and_foreign_keys_are_written(tmp_path: Path) -> None:
    keys = ["n" * 300, "é/ü", "__x__"]
    (shard,) = write_shards([(key, {"txt": b""}) for key in keys], str(tmp_path), samples_per_shard=9)
    assert [sample.key for sample in read_samples(shard.address)] == keys


def test_existing_shards_are_kept_unless_told(tmp_path: Path) -> None:
    for address in write_chats(tmp_path, 6, 2):
        write_index(address, build_index(address))
    with pytest.raises(ConfigError, match=r"shard-000000\.tar exists \(and 2 more"):
        write_chats(tmp_path, 1, 1)
    assert len(os.listdir(tmp_path)) == 6
    write_shards(samples(2), str(tmp_path), samples_per_shard=2, prefix="other")
    write_shards(samples(3), str(tmp_path), samples_per_shard=2, overwrite=True)
    # Neither the third shard of the first writing nor an old index may mix with the new shards.
    assert sorted(os.listdir(tmp_path)) == ["other-000000.tar", "shard-000000.tar", "shard-000001.tar"]


def test_a_failed_writing_leaves_no_shard(tmp_path: Path) -> None:
    def failing() -> Iterator[RawSample]:
        yield from samples(5)
        raise ShardError("bad line")

    with pytest.raises(ShardError, match="bad line"):
        write_shards(failing(), str(tmp_path), samples_per_shard=2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "no sample"),
        ([("a", {})], "no members"),
        ([("a", {"json": b""}), ("a", {"json": b""})], "twice"),
        ([("a.b", {"json": b""})], "read back"),
        ([("", {"json": b""})], "read back"),
        ([("a", {"JSON": b""})], "read back"),
        ([("a", {"": b""})], "read back"),
        ([("./a", {"json": b""})], "read back"),
        ([("__meta__/a", {"json": b""})], "read back"),
        ([("a", {"__key__": b""})], "read back"),
        ([("a", {"x.pkl": b""})], "pickle"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tmp_path: Path, raw: list[RawSample], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        write_shards(raw, str(tmp_path), samples_per_shard=9)
    assert os.listdir(tmp_path) == []


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples_per_shard is 0"):
        write_shards(samples(1), str(tmp_path), samples_per_shard=0)
    with pytest.raises(ConfigError, match="prefix"):
        write_shards(samples(1), str(tmp_path), samples_per_shard=1, prefix="a/b")


def test_json_lines_are_read_with_their_numbers_and_written_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"text":  "a\u2028b"}', "", '{"messages": []}']
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert list(read_jsonl(str(path))) == [(1, {"text": "a\u2028b"}), (3, {"messages": []})]
    assert list(jsonl_samples(str(path))) == [
        ("00000000", {"json": lines[0].encode()}),
        ("00000001", {"json": lines[2].encode()}),
    ]


@pytest.mark.parametrize("line", [b"{", b"\xff", b"[1]", b"3", b"[" * 100_000])
def test_a_line_that_is_no_object_names_file_and_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"a": 1}).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(ShardError, match=r"a\.jsonl, line 3: .*one (JSON )?object a line"):
        list(read_jsonl(str(path)))
    with pytest.raises(ShardError, match=r"none\.jsonl: no such file"):
        list(read_jsonl(f"{tmp_path}/none.jsonl"))
