"""Members to fields: json and txt are parsed, the rest is bytes, and what cannot be is an error with its place."""

import pytest

from odb_stream.errors import ShardError
from odb_stream.sample import Drop, Record, SampleRef
from odb_stream.shards.members import open_members, open_or_drop


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
    ("members", "reason", "words"),
    [
        ({"json": b"{"}, "bad_json", "does not parse"),
        ({"json": b""}, "bad_json", "does not parse"),
        ({"json": b"\xff\xfe\xfd"}, "not_utf8", "does not parse"),
        ({"json": '{"a": "é"}'.encode("latin-1")}, "not_utf8", "does not parse"),
        ({"json": b"[" * 100_000}, "bad_json", "does not parse"),
        ({"json": b"[1]"}, "bad_json", "not an object but list"),
        ({"json": b"null"}, "bad_json", "not an object but NoneType"),
        ({"txt": b"\xff"}, "not_utf8", "not UTF-8"),
        ({"txt": "é".encode("utf-16")}, "not_utf8", "not UTF-8"),
        ({"_0_jpg": b""}, "no_text", "neither json nor txt, but 0.jpg"),
        ({}, "no_text", "nothing"),
        ({"json": b'{"0.jpg": 1}', "_0_jpg": b""}, "repeated_member", "two members give the field '0.jpg'"),
        ({"json": b'{"text": 1}', "txt": b""}, "repeated_member", "two members give the field 'text'"),
    ],
)
def test_what_is_not_in_the_format_is_raised_or_dropped_with_its_place(
    members: dict[str, bytes], reason: str, words: str
) -> None:
    dropped = open_or_drop(record(**members))
    assert isinstance(dropped, Drop)
    assert (dropped.reason, dropped.damaged) == (reason, True)
    assert dropped.detail.startswith("a.tar, key 'k' (sample 7, byte offset 1024): ")
    assert words in dropped.detail
    with pytest.raises(ShardError) as raised:
        open_members(record(**members))
    assert str(raised.value) == dropped.detail
