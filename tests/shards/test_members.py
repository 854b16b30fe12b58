"""Members to fields: json and txt are parsed, the rest is bytes, and what cannot be is an error with its place."""

import pytest

from odb_stream.errors import ShardError
from odb_stream.sample import Record, SampleRef
from odb_stream.shards.members import open_members


def record(**members: bytes) -> Record:
    named = {name.replace("_", "."): data for name, data in members.items()}
    return Record(
        SampleRef(0, 3, 7, 1024), "k", "a.tar", {name.removeprefix("."): data for name, data in named.items()}
    )


def test_json_keys_become_fields_and_images_stay_bytes() -> None:
    fields = open_members(record(json=b'{"messages": [], "tools": [1]}', _0_jpg=b"\xff"))
    assert fields == {"messages": [], "tools": [1], "0.jpg": b"\xff"}


def test_txt_becomes_text() -> None:
    assert open_members(record(txt="héllo".encode())) == {"text": "héllo"}
    assert open_members(record(txt=b"t", json=b'{"a": 1}')) == {"text": "t", "a": 1}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_json_may_carry_a_byte_order_mark(encoding: str) -> None:
    assert open_members(record(json='{"a": "é"}'.encode(encoding))) == {"a": "é"}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"json": b"{"}, "does not parse"),
        ({"json": b""}, "does not parse"),
        ({"json": b"\xff\xfe\xfd"}, "does not parse"),
        ({"json": b"[" * 100_000}, "does not parse"),
        ({"json": b"[1]"}, "not an object but list"),
        ({"json": b"null"}, "not an object but NoneType"),
        ({"txt": b"\xff"}, "not UTF-8"),
        ({"_0_jpg": b""}, "neither json nor txt, but 0.jpg"),
        ({}, "nothing"),
        ({"json": b'{"0.jpg": 1}', "_0_jpg": b""}, "two members give the field '0.jpg'"),
        ({"json": b'{"text": 1}', "txt": b""}, "two members give the field 'text'"),
    ],
)
def test_what_is_not_in_the_format_names_the_place(members: dict[str, bytes], words: str) -> None:
    with pytest.raises(ShardError, match=rf"a\.tar, key 'k' \(sample 7, byte offset 1024\): .*{words}"):
        open_members(record(**members))
