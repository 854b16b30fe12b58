"""The check of shards: it counts, names every kind of damage, and goes on to the next shard."""

import re
from pathlib import Path

import pytest
from make_tars import chat, chat_files, overwrite_blocks, tar_bytes, write_tar_file

from odb_stream.errors import ConfigError
from odb_stream.shards.check import MOST_PROBLEMS, check_shard
from odb_stream.shards.index import index_address, write_index
from odb_stream.shards.reader import build_index


def test_a_good_shard(tmp_path: Path) -> None:
    address = write_tar_file(tmp_path / "a.tar", [*chat_files(3), ("x.txt", b"t"), ("x.0.jpg", b"j")])
    report = check_shard(address)
    assert report.good
    assert (report.address, report.samples, report.members, report.index) == (address, 4, 5, "missing")
    assert report.bytes == Path(address).stat().st_size
    write_index(address, build_index(address))
    assert check_shard(address).index == "good"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "holds no sample"),
        ([("a.json", b"{")], r"key 'a' \(sample 0, byte offset 0\): the json member does not parse"),
        ([("a.txt", b"\xff")], "not UTF-8"),
        ([("a.jpg", b"")], "neither json nor txt"),
        ([("a.json", b'{"messages": "[]"}')], "`messages` is not a list"),
        ([("a.json", b'{"messages": []}')], "`messages` is not a list"),
        ([("a.json", b'{"messages": [{"role": "user"}]}')], "`messages` is not a list"),
        ([("a.txt", b""), ("b.txt", b""), ("a.json", b"")], "comes back"),
        ([("a.pkl", b"")], "pickle"),
    ],
)
def test_problems_are_reported_not_raised(tmp_path: Path, files: list[tuple[str, bytes]], words: str) -> None:
    report = check_shard(write_tar_file(tmp_path / "a.tar", files))
    assert not report.good
    (problem,) = report.problems
    assert problem.startswith(f"{tmp_path}/a.tar")
    assert re.search(words, problem)


def test_it_goes_on_over_samples_and_shards(tmp_path: Path) -> None:
    files = [("a.json", b"{"), ("b.json", chat("b")), ("c.json", b"[]")]
    first = write_tar_file(tmp_path / "a.tar", files)
    cut = tmp_path / "b.tar"
    cut.write_bytes(tar_bytes(files)[: 1024 + 512 + 10])
    good = write_tar_file(tmp_path / "d.tar", files[1:2])
    reports = [check_shard(address) for address in (first, str(cut), f"{tmp_path}/none.tar", good)]
    assert [len(report.problems) for report in reports] == [2, 2, 1, 0]
    assert [report.samples for report in reports] == [3, 1, 0, 1]
    assert "data of member 'b.json' is cut" in reports[1].problems[1]
    assert "no such file" in reports[2].problems[0]


def test_after_damage_it_goes_on_and_counts_what_is_whole_and_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    address = write_tar_file(path, chat_files(40), indexed=True)
    overwrite_blocks(path, 20, 40)
    data = bytearray(path.read_bytes())
    data[30 * 1024 + 512] = ord("[")
    path.write_bytes(data)
    report = check_shard(address)
    # The index tells that three samples were hit: two headers, and one text, which is no JSON now.
    assert (report.samples, report.lost, report.index) == (37, 3, "good")
    assert [problem.split(": ")[1].split(" (")[0] for problem in report.problems[:2]] == [
        "a tar header is corrupt; copy or write the shard again"
    ] * 2
    assert "byte offset 10240" in report.problems[0]
    assert "byte offset 20480" in report.problems[1]
    assert "key '00030'" in report.problems[2]
    Path(index_address(address)).unlink()
    report = check_shard(address)
    assert (report.samples, report.lost, report.index, len(report.problems)) == (34, 4, "missing", 3)


def test_an_index_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    address = write_tar_file(path, chat_files(3), indexed=True)
    # One bit of one letter: same size, same keys, same offsets.
    path.write_bytes(path.read_bytes().replace(b"message 00001", b"message 00000"))
    report = check_shard(address)
    assert report.index == "bad"
    assert "does not fit the shard's content" in report.problems[0]
    path.write_bytes(path.read_bytes()[:4096])
    report = check_shard(address)
    assert report.index == "bad"
    assert "does not fit" in report.problems[-1]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    report = check_shard(write_tar_file(tmp_path / "a.tar", [(f"{number}.json", b"") for number in range(50)]))
    assert len(report.problems) == MOST_PROBLEMS + 1
    assert report.problems[-1] == f"{50 - MOST_PROBLEMS} more problems"
    assert report.samples == 50


def test_a_refused_address_is_an_error() -> None:
    with pytest.raises(ConfigError):
        check_shard("pipe:cat a.tar")
