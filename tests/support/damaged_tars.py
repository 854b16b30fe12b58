"""Random shards and random damage to them, with what each byte of a shard is."""

import io
import tarfile
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st
from make_tars import BLOCK, tar_bytes

from odb_stream.shards.reader import grouped
from odb_stream.shards.tar.faults import Fault
from odb_stream.shards.tar.grouping import Item
from odb_stream.shards.tar.headers import ByteCursor
from odb_stream.shards.tar.walk import walk

Part = Literal["header", "name", "data", "padding", "end"]

LONG = "n" * 120
KEYS = ["a", "dir.v1/b", "é/ü", LONG, f"{LONG}/é", "c"]
EXTENSIONS = ["json", "txt", "0.jpg"]


@dataclass(frozen=True)
class Damage:
    """A shard before and after, and the part of it that was hit: what that byte is, and of which file."""

    whole: bytes = field(repr=False)
    after: bytes = field(repr=False)
    at: int
    part: Part
    file: int

    @property
    def visible(self) -> bool:
        """Whether a reader without an index can tell: data, and names in extended headers, carry no checksum."""
        return self.part not in ("data", "name")


@st.composite
def shards(draw: st.DrawFn) -> bytes:
    """A tar of up to six samples with up to three members each, in any format, with any kind of name."""
    tar_format = draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=6, unique=True))
    files = []
    for key in keys:
        for extension in draw(st.lists(st.sampled_from(EXTENSIONS), min_size=1, max_size=3, unique=True)):
            # Never all zeros, which looks like the end where a header before it is zeroed.
            text = draw(st.binary(max_size=4)) * draw(st.sampled_from([0, 1, 300]))
            files.append((f"{key}.{extension}", b"." + text + draw(st.sampled_from([b"", b"\n"]))))
    return tar_bytes(files, tar_format)


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Any such shard, cut at any byte, with any byte changed, or with any block overwritten."""
    whole = draw(shards())
    at = draw(st.integers(0, len(whole) - 1))
    block = at // BLOCK * BLOCK
    match draw(st.sampled_from(["cut", "flip", "zeros", "junk"])):
        case "cut":
            # What is left is sound: nothing of it is data that lie about themselves.
            return Damage(whole, whole[:at], at, "header", part_of(whole, at)[1])
        case "flip":
            flipped = whole[at] ^ draw(st.integers(1, 255))
            return Damage(whole, whole[:at] + bytes([flipped]) + whole[at + 1 :], at, *part_of(whole, at))
        case "zeros":
            part, file = part_of(whole, block)
            # A name of zeros is seen to be none.
            part = "header" if part == "name" else part
            return Damage(whole, whole[:block] + bytes(BLOCK) + whole[block + BLOCK :], at, part, file)
        case _:
            junk = draw(st.binary(min_size=1, max_size=BLOCK)).ljust(BLOCK, b"\xff")
            return Damage(whole, whole[:block] + junk + whole[block + BLOCK :], at, *part_of(whole, block))


def part_of(whole: bytes, at: int) -> tuple[Part, int]:
    """What a byte is, and the number of the file that it belongs to."""
    with tarfile.open(fileobj=io.BytesIO(whole), encoding="utf-8") as tar:
        files = tar.getmembers()
    number = bisect_right([file.offset for file in files], at) - 1
    file = files[number]
    if at >= file.offset_data + -(-file.size // BLOCK) * BLOCK:
        return "end", number
    if at >= file.offset_data:
        return ("data" if at < file.offset_data + file.size else "padding"), number
    in_extended = file.offset + BLOCK <= at < file.offset_data - BLOCK
    return ("name" if in_extended else "header"), number


def read_tolerantly(data: bytes) -> list[Item]:
    """All samples of a shard, whole and lost, without an index and without looking for halves."""
    return list(grouped(ByteCursor("shard", io.BytesIO(data), 0), 0, lambda fault: fault.drop("shard")))


def faults_of(data: bytes) -> list[Fault]:
    """Every fault that a walk over a shard meets."""
    return [event for event in walk(ByteCursor("shard", io.BytesIO(data), 0)) if isinstance(event, Fault)]
