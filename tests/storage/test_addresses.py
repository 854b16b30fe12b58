"""Addresses: brace lists, globs and lists, what is refused, and files that appear whole or not at all."""

import os
import threading
from pathlib import Path

import pytest

from odb_stream import storage
from odb_stream.errors import ConfigError, ShardError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"x")


def test_braces_globs_and_lists_give_the_same_shards_in_numeric_order(tmp_path: Path) -> None:
    touch(tmp_path, *(f"s-{number}.tar" for number in (0, 1, 2, 9, 10, 11)))
    expected = tuple(f"{tmp_path}/s-{number}.tar" for number in (0, 1, 2, 9, 10, 11))
    assert storage.expand(f"{tmp_path}/s-*.tar") == expected
    assert storage.expand(f"{tmp_path}/s-{{0..2}}.tar") == expected[:3]
    assert storage.expand([f"{tmp_path}/s-{{9..11}}.tar", f"{tmp_path}/s-[0-2].tar"]) == expected
    assert storage.expand(list(reversed(expected))) == expected
    assert storage.expand(tmp_path / "s-9.tar") == (expected[3],)


def test_a_glob_leaves_out_indexes_folders_and_unfinished_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar", "a.tar" + storage.INDEX_SUFFIX, ".a.tar.0123.tmp")
    (tmp_path / "folder").mkdir()
    assert storage.expand(f"{tmp_path}/*") == (f"{tmp_path}/a.tar",)


def test_a_file_whose_name_holds_brackets_is_found(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].tar")
    assert storage.expand(f"{tmp_path}/a[1].tar") == (f"{tmp_path}/a[1].tar",)


def test_file_addresses_are_local_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar", "b.tar")
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    assert storage.expand(f"file://{tmp_path}/*.tar") == (f"file://{tmp_path}/a.tar", f"file://{tmp_path}/b.tar")
    assert storage.read_if_there(f"file://{tmp_path}/a.tar", length=4) == b"0123"
    assert storage.size(f"file://{tmp_path}/a.tar") == 10


def test_reading(tmp_path: Path) -> None:
    address = str(tmp_path / "a")
    storage.write_atomic(address, b"0123456789")
    assert storage.read_if_there(address, length=100) == b"0123456789"
    with storage.open_stream(address, 4) as stream:
        assert stream.read() == b"456789"
    assert storage.exists(address)
    storage.remove(address)
    storage.remove(address)
    assert not storage.exists(address)


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ([], "empty"),
        ("", "non-empty"),
        ([3], "non-empty"),
        ("pipe:cat a.tar", "pipe"),
        (" PIPE:cat a.tar", "pipe"),
        ("cat a.tar |", "command"),
        ("{pipe:cat,a}.tar", "pipe"),
        ("-", "pipe"),
        ("ftp://host/a.tar", "ftp:// addresses cannot be read; accepted are local paths and file://, s3://, gs://, az://"),
        ("https://host/a-*.tar", "no list of its files"),
        ("s3://user:secret@bucket/a.tar", "credentials do not belong in the address"),
        ("a-{000..001.tar", "braces"),
    ],
)
def test_what_is_refused_before_any_file_is_looked_at(urls: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        storage.patterns(urls)  # type: ignore[arg-type]


def test_missing_shards_name_themselves(tmp_path: Path) -> None:
    touch(tmp_path, "a-0.tar")
    with pytest.raises(ShardError, match=r"a-1\.tar: no such file; check"):
        storage.expand(f"{tmp_path}/a-{{0..1}}.tar")
    with pytest.raises(ShardError, match=r"b-\*\.tar: no file matches"):
        storage.expand(f"{tmp_path}/b-*.tar")
    with pytest.raises(ShardError, match=r"is a folder; name its files"):
        storage.expand(str(tmp_path))
    for read in (storage.size, storage.open_stream):
        with pytest.raises(ShardError, match="no such file"):
            read(f"{tmp_path}/none")
    with pytest.raises(ShardError, match="is a folder"):
        storage.open_stream(str(tmp_path))


def test_the_same_shard_twice_is_refused_under_any_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar")
    (tmp_path / "link.tar").symlink_to(tmp_path / "a.tar")
    a = f"{tmp_path}/a.tar"
    for urls in ([a, a], [a, f"{tmp_path}/../{tmp_path.name}/a.tar"], [a, f"{tmp_path}/link.tar"], [a, f"file://{a}"]):
        with pytest.raises(ConfigError, match="listed twice"):
            storage.expand(urls)


def test_log_names_hold_no_secrets() -> None:
    assert storage.log_name("https://user:secret@host:8080/a.tar?token=secret#x") == "https://host:8080/a.tar"
    assert storage.log_name("https://user:secret@host?token=secret") == "https://host"
    assert storage.log_name("s3://bucket/a?b*.tar") == "s3://bucket/a?b*.tar"
    assert storage.log_name("s3://key:secret@bucket/a.tar?X-Amz-Signature=secret") == "s3://bucket/a.tar"
    assert storage.log_name("/data/a?b=c.tar") == "/data/a?b=c.tar"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    address = str(tmp_path / "sub" / "a")
    storage.write_atomic(address, b"old")
    with pytest.raises(RuntimeError), storage.create(address) as stream:  # noqa: PT012 - the writer fails
        stream.write(b"half")
        stream.flush()
        assert Path(address).read_bytes() == b"old"
        raise RuntimeError
    assert os.listdir(tmp_path / "sub") == ["a"]
    assert Path(address).read_bytes() == b"old"
    storage.write_atomic(address, b"new")
    assert Path(address).read_bytes() == b"new"
    with pytest.raises(ShardError, match="cannot be written"):
        storage.write_atomic(f"{address}/b", b"")


def test_find_takes_the_folder_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "odd[1]*"
    folder.mkdir()
    touch(folder, "s-10.tar", "s-9.tar", "t.tar")
    assert storage.find(str(folder), "s-*.tar") == [f"{folder}/s-9.tar", f"{folder}/s-10.tar"]
    assert storage.find(f"{tmp_path}/none", "*") == []


def test_work_is_done_in_order_by_no_more_threads_than_allowed() -> None:
    names = set()

    def work(number: int) -> int:
        names.add(threading.current_thread().name)
        return -number

    assert storage.concurrently(work, range(100), most=8) == [-number for number in range(100)]
    assert 1 <= len(names) <= 8
    assert all("odb_stream-requests" in name for name in names)
    names.clear()
    storage.concurrently(work, range(100), most=1)
    assert names == {threading.current_thread().name}
