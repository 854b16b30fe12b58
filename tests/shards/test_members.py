"""Members to fields: json and txt are parsed, the rest is bytes, and what cannot be is an error with its place."""

import pytest

from odb_stream.errors import ShardError
from odb_stream.sample import Drop, Record, SampleRef
from odb_stream.shards.members import open_members, open_or_drop


def record(members: dict[str, bytes]) -> Record:
    return Record(SampleRef(0, 3, 7, 1024), "k", "a.tar", members)


@pytest.mark.parametrize(
    ("members", "fields"),
    [
        ({"json": b'{"messages": [], "tools": 1}', "0.jpg": b"\xff"}, {"messages": [], "tools": 1, "0.jpg": b"\xff"}),
        ({"txt": "héllo".encode()}, {"text": "héllo"}),
        ({"txt": b"t", "json": b'{"a": 1}'}, {"text": "t", "a": 1}),
        *(({"json": '{"a": "é"}'.encode(mark)}, {"a": "é"}) for mark in ("utf-8-sig", "utf-16", "utf-32")),
    ],
)
def test_json_and_txt_become_fields_and_images_stay_bytes(members: dict[str, bytes], fields: dict[str, object]) -> None:
    assert open_members(record(members)) == fields


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
        ({"0.jpg": b""}, "no_text", "neither json nor txt, but 0.jpg"),
        ({}, "no_text", "nothing"),
        ({"json": b'{"0.jpg": 1}', "0.jpg": b""}, "repeated_member", "two members give the field '0.jpg'"),
        ({"json": b'{"text": 1}', "txt": b""}, "repeated_member", "two members give the field 'text'"),
    ],
)
def test_what_is_not_in_the_format_is_raised_or_dropped_with_its_place(
    members: dict[str, bytes], reason: str, words: str
) -> None:
    dropped = open_or_drop(record(members))
    assert isinstance(dropped, Drop)
    assert (dropped.reason, dropped.damaged) == (reason, True)
    assert dropped.detail.startswith("a.tar, key 'k' (sample 7, byte offset 1024): ")
    assert words in dropped.detail
    with pytest.raises(ShardError) as raised:
        open_members(record(members))
    assert str(raised.value) == dropped.detail
