"""Reading samples: grouping and names, byte offsets, and beginning at any sample."""

import io
import logging
import tarfile
from pathlib import Path

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from make_tars import BLOCK, chat_files, read_one, write_tar_file

from odb_stream.errors import ShardError
from odb_stream.shards.reader import read_samples
from odb_stream.shards.tar.grouping import TarSample

FILES = [
    ("a.json", b"{}"),
    ("a.0.jpg", b"x" * 1000),
    ("a.1.JPG", b""),
    ("dir.v1/b.txt", b"y" * BLOCK),
    ("./c.json", b"z" * 20_000),
    ("c.txt", b"last"),
]


def test_samples_are_runs_of_files_with_one_key(tmp_path: Path) -> None:
    address = write_tar_file(tmp_path / "a.tar", FILES)
    a, b, c = read_samples(address)
    assert a == TarSample("a", {"json": b"{}", "0.jpg": b"x" * 1000, "1.jpg": b""}, 0, 0, 6 * BLOCK)
    assert (b.key, list(b.members), b.index, b.offset) == ("dir.v1/b", ["txt"], 1, a.end)
    assert (c.key, c.members["txt"], c.index, c.offset) == ("c", b"last", 2, b.end)


def test_the_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    files = [file for file in FILES if not file[0].startswith("./")]
    files.insert(2, ("__meta__/info.json", b"left out"))
    files.insert(3, (".DS_Store", b"left out"))
    address = write_tar_file(tmp_path / "a.tar", files)
    theirs = [
        {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
        for sample in webdataset.WebDataset(address, shardshuffle=False)
    ]
    assert [{"__key__": sample.key, **sample.members} for sample in read_samples(address)] == theirs


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_reading_begins_at_any_sample(tmp_path: Path, tar_format: int) -> None:
    long = "d" * 90 + "/" + "n" * 90 if tar_format == tarfile.USTAR_FORMAT else "n" * 300 + "é"
    files = [*FILES[:4], (f"{long}.json", b"{}"), (f"{long}.txt", b"t"), ("z.txt", b"u")]
    address = write_tar_file(tmp_path / "a.tar", files, tar_format)
    samples = list(read_samples(address))
    assert [sample.key for sample in samples] == ["a", "dir.v1/b", long, "z"]
    for sample in samples:
        rest = samples[sample.index :]
        assert list(read_samples(address, offset=sample.offset, number=sample.index)) == rest
        assert list(read_samples(address, offset=sample.end, number=sample.index + 1)) == rest[1:]
        assert read_one(address, sample.offset, sample.index) == sample
    with pytest.raises(ShardError, match="no sample starts here"):
        read_one(address, samples[-1].end, 4)
    with pytest.raises(ShardError, match="byte offset 512: no tar header here"):
        read_one(address, BLOCK, 0)


def test_folders_and_links_are_left_out_and_links_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("d/a.json", tarfile.REGTYPE), ("d/a.jpg", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "other.jpg" if kind == tarfile.LNKTYPE else ""
            tar.addfile(info, io.BytesIO())
    (tmp_path / "a.tar").write_bytes(stream.getvalue())
    with caplog.at_level(logging.WARNING):
        (sample,) = read_samples(str(tmp_path / "a.tar"))
    assert (sample.key, list(sample.members), sample.offset) == ("d/a", ["json"], BLOCK)
    assert "'d/a.jpg' is a link" in caplog.text


def test_a_valid_tar_without_samples_gives_none(tmp_path: Path) -> None:
    assert list(read_samples(write_tar_file(tmp_path / "a.tar", []))) == []
    left_out = ("__info__", "__d__/a.json", ".gitkeep", "d/._a.json", "./.DS_Store", "a/.hidden")
    assert list(read_samples(write_tar_file(tmp_path / "b.tar", [(name, b"x") for name in left_out]))) == []


def test_the_stream_is_closed_when_reading_stops_early(tmp_path: Path) -> None:
    samples = read_samples(write_tar_file(tmp_path / "a.tar", chat_files(3)))
    next(samples)
    samples.close()  # an unclosed file would be an unraisable ResourceWarning
    assert next(samples, None) is None


NAMES = st.text("ab", min_size=1, max_size=3)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, st.binary(max_size=1100), min_size=1, max_size=3), max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, shard: dict[str, dict[str, bytes]]) -> None:
    files = ((f"{key}.{name}", data) for key, members in shard.items() for name, data in members.items())
    address = write_tar_file(tmp_path_factory.mktemp("tar") / "a.tar", files)
    assert [(sample.key, sample.members) for sample in read_samples(address)] == list(shard.items())
