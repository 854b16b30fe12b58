"""The sidecar index: what it holds, that it is read back, and that one that does not fit is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from make_tars import chat_files, write_tar_file

from odb_stream.errors import ShardError
from odb_stream.shards.index import ShardIndex, index_address, read_count, read_index, write_index
from odb_stream.shards.reader import build_index, read_samples


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return write_tar_file(tmp_path / "a.tar", chat_files(5))


def test_an_index_is_read_back(shard: str) -> None:
    assert read_index(shard) is None
    assert read_count(shard) is None
    index = build_index(shard)
    assert write_index(shard, index) == index_address(shard) == f"{shard}.idx.json"
    text = Path(index_address(shard)).read_bytes()
    assert Path(write_index(shard, build_index(shard))).read_bytes() == text
    assert read_index(shard) == index
    assert read_count(shard) == index.samples == 5
    samples = list(read_samples(shard))
    assert index.keys == tuple(sample.key for sample in samples)
    assert index.offsets == tuple(sample.offset for sample in samples)
    assert len(set(index.checksums)) == 5
    content = json.loads(text)
    assert (content["version"], content["shard_bytes"], content["samples"]) == (1, Path(shard).stat().st_size, 5)
    # Other line breaks, so that the counts are not on the first line.
    Path(index_address(shard)).write_text(json.dumps(content, indent=2))
    assert read_count(shard) == 5
    assert read_index(shard) == index


def test_an_empty_shard_has_an_index(tmp_path: Path) -> None:
    empty = write_tar_file(tmp_path / "empty.tar", [], indexed=True)
    assert read_count(empty) == 0
    assert read_index(empty) == ShardIndex(Path(empty).stat().st_size, (), (), ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"shard_bytes": 1}, "stale"),
        ({"samples": -1}, "-1 samples"),
        ({"samples": True}, "True samples"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(shard: str, change: dict[str, object], words: str) -> None:
    path = Path(write_index(shard, build_index(shard)))
    lines = path.read_text().split("\n")
    lines[0] = json.dumps({**json.loads(lines[0][:-1] + "}"), **change})[:-1] + ","
    path.write_text("\n".join(lines))
    for read in (read_index, read_count):
        with pytest.raises(ShardError, match=rf"a\.tar\.idx\.json: .*{words}.*run `odb-stream index` again"):
            read(shard)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"version": 1, "shard_bytes": SIZE, "samples": 5}',
        '{"version": 1, "shard_bytes": SIZE, "samples": 1, "keys": ["a"], "offsets": ["0"], "checksums": [0]}',
        '{"version": 1, "shard_bytes": SIZE, "samples": 1, "keys": ["a"], "offsets": [0, 1], "checksums": [0]}',
    ],
)
def test_an_unreadable_index_is_refused(shard: str, text: str) -> None:
    size = str(Path(shard).stat().st_size)
    Path(index_address(shard)).write_text(text.replace("SIZE", size), encoding="latin-1")
    with pytest.raises(ShardError, match="run `odb-stream index` again"):
        read_index(shard)


def test_a_cut_index_is_refused_at_every_length(shard: str) -> None:
    path = Path(write_index(shard, build_index(shard)))
    text = path.read_bytes()
    for length in range(len(text.rstrip())):
        path.write_bytes(text[:length])
        with pytest.raises(ShardError, match="run `odb-stream index` again"):
            read_index(shard)


def test_verify_knows_each_sample(shard: str) -> None:
    index = build_index(shard)
    sample = next(read_samples(shard))
    index.verify(shard, sample)
    for wrong in (replace(sample, key="other"), replace(sample, offset=512), replace(sample, index=5)):
        with pytest.raises(ShardError, match="run `odb-stream index` again"):
            index.verify(shard, wrong)
