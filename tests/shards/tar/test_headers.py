"""Tar headers: names in every format, and extended headers that make no sense."""

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from damaged_tars import faults_of, read_tolerantly
from make_tars import BLOCK, read_one, tar_bytes

from odb_stream.errors import ShardError
from odb_stream.shards.reader import read_samples
from odb_stream.shards.tar.grouping import TarSample
from odb_stream.shards.tar.headers import MOST_AT_ONCE, ByteCursor, Entry
from odb_stream.shards.tar.walk import walk

NAMES = ["a.json", "dir.v1/b.0.jpg", "é/ü.txt", "d" * 90 + "/" + "n" * 60 + ".json", "n" * 300 + ".txt", "日本.json"]


def entries(data: bytes) -> list[Entry]:
    return [event for event in walk(ByteCursor("shard", io.BytesIO(data), 0)) if isinstance(event, Entry)]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_entries_are_those_of_tarfile(tar_format: int) -> None:
    names = [name for name in NAMES if tar_format != tarfile.USTAR_FORMAT or len(name) < 250]
    data = tar_bytes([(name, b"x" * (400 * number)) for number, name in enumerate(names)], tar_format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        theirs = [(file.name, file.offset, file.size, file.offset_data) for file in tar]
    ours = [
        (entry.name, entry.offset, entry.size, entry.end - -(-entry.size // BLOCK) * BLOCK) for entry in entries(data)
    ]
    assert ours == theirs


def pax(headers: dict[str, str], size: int = 3, name: str = "k.json") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = size, headers
        tar.addfile(info, io.BytesIO(b"x" * size))
    return stream.getvalue()


def test_what_pax_headers_say_counts() -> None:
    (entry,) = entries(pax({"path": "other.txt", "comment": "a=b\nc", "mtime": "1.5"}))
    assert (entry.name, entry.extended, entry.offset, entry.size) == ("other.txt", True, 0, 3)
    (entry,) = entries(pax({"comment": "x"}))
    assert (entry.name, entry.extended) == ("k.json", False)
    # A size that a header of its own cannot hold stands in the extended one alone.
    big = pax({"size": "3"})
    header = bytearray(big[2 * BLOCK : 3 * BLOCK])
    header[124:136] = b"0" * 11 + b"\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (entry,) = entries(big[: 2 * BLOCK] + bytes(header) + big[3 * BLOCK :])
    assert entry.size == 3


LONG = tar_bytes([("n" * 200, b"")])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pax({"size": "4"}), "two headers of 'k.json' give it different sizes"),
        (pax({"size": "-4"}), "an extended header is corrupt"),
        (pax({"comment": "x"}).replace(b"13 comment=x\n", b"14 comment=x\n"), "an extended header is corrupt"),
        (pax({"comment": "x"}).replace(b"13 comment=x\n", b"xx comment=x\n"), "an extended header is corrupt"),
        (pax({"comment": "x"}).replace(b"13 comment=x\n", b"13 comment x\n"), "an extended header is corrupt"),
        (pax({"comment": "x"}).replace(b"13 comment=x\n", b"99 comment=x\n"), "an extended header is corrupt"),
        (pax({"GNU.sparse.major": "1"}), "sparse file"),
        (LONG[: BLOCK + 100], "cut in an extended header"),
        (LONG[: 2 * BLOCK], "cut in a header"),
        (LONG[:BLOCK] + bytes(BLOCK) + LONG[2 * BLOCK :], "an empty name"),
    ],
)  # fmt: skip
def test_an_extended_header_that_makes_no_sense_is_a_fault_at_its_place(data: bytes, words: str) -> None:
    before, after = tar_bytes([("a.json", b"{}")])[: 2 * BLOCK], tar_bytes([("y.json", b"{}"), ("z.json", b"{}")])
    fault = faults_of(before + data)[0]
    assert fault.offset == 2 * BLOCK
    assert words in fault.what
    whole = data.rstrip(b"\0")
    whole += bytes(-len(whole) % BLOCK)
    items = read_tolerantly(before + whole + after)
    assert [item.key for item in items if isinstance(item, TarSample)] in (["z"], [])


def test_a_sparse_file_is_refused() -> None:
    info = tarfile.TarInfo("a.json")
    info.type = tarfile.GNUTYPE_SPARSE
    data = info.tobuf(tarfile.GNU_FORMAT) + tar_bytes([("b.json", b"{}")])
    assert faults_of(data)[0].reason == "refused_member"


@pytest.mark.parametrize("name", [b"caf\xe9.json", b"caf\xe9.json" + b"x" * 100])
def test_a_name_that_is_not_utf8_is_an_error(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.txt", b"t"), (name.decode("utf-8", "surrogateescape"), b"{}"), ("z.txt", b"t")]))
    with pytest.raises(
        ShardError, match=r"byte offset 1024: the name of member 'caf.*is not UTF-8; name files in UTF-8"
    ):
        list(read_samples(str(path)))
    assert [item.drop.reason for item in read_tolerantly(path.read_bytes()) if not isinstance(item, TarSample)] == [
        "bad_name",
        "bad_name",
    ]


WHOLE = tar_bytes([("a.txt", b"t")])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (gzip.compress(WHOLE), "gzip"),
        (bz2.compress(WHOLE), "bzip2"),
        (lzma.compress(WHOLE), "xz"),
        (b"\x28\xb5\x2f\xfd" + WHOLE, "zstd"),
        (b"\x04\x22\x4d\x18" + WHOLE, "lz4"),
    ],
)
def test_a_compressed_tar_is_named_and_not_searched(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ShardError, match=rf"the file is compressed \({name}\); store plain tar files"):
        list(read_samples(f"{tmp_path}/a.tar"))
    (item,) = read_tolerantly(data)
    assert not isinstance(item, TarSample)
    assert item.drop.reason == "unreadable_shard"


class Watched(io.BytesIO):
    """Notes how much is asked for and taken, and gives it in pieces, as a slow connection would."""

    most_asked = taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(min(size or 0, 1000))
        self.most_asked = max(self.most_asked, size or 0)
        self.taken += len(data)
        return data


def test_one_sample_is_read_to_the_next_header_and_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tar_bytes([("a.json", b"x" * 5000), ("a.txt", b"y" * 3000), ("b.txt", b"z" * 50_000)])
    stream = Watched(data)
    monkeypatch.setattr("odb_stream.storage.open_stream", lambda *args: stream)
    sample = read_one("a.tar", 0, 7)
    assert isinstance(sample, TarSample)
    assert {name: len(text) for name, text in sample.members.items()} == {"json": 5000, "txt": 3000}
    assert stream.taken == sample.end + BLOCK


def test_one_sample_is_whole_only_where_something_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(WHOLE[: 3 * BLOCK])
    assert isinstance(read_one(str(path), 0, 0), TarSample)
    path.write_bytes(WHOLE[: 2 * BLOCK])
    with pytest.raises(ShardError, match="lacks its two end blocks"):
        read_one(str(path), 0, 0)


def test_a_size_beyond_the_file_asks_for_no_more_memory_than_the_file_fills() -> None:
    info = tarfile.TarInfo("a.json")
    info.size = 1 << 50
    stream = Watched(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 100)
    cursor = ByteCursor("shard", stream, 0)
    for event in walk(cursor):
        if isinstance(event, Entry):
            assert len(cursor.read(event.size)) == 100
    assert stream.most_asked <= MOST_AT_ONCE
