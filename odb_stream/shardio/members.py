"""From the members of a record to the fields of a sample: json and txt are parsed, everything else stays bytes."""

import json
from typing import Any

from odb_stream.errors import ShardError
from odb_stream.sample import Record

FORMAT = "a sample holds KEY.json (an object, with `messages`) or KEY.txt (UTF-8 text)"


def open_members(record: Record) -> dict[str, Any]:
    """The fields of a record from a shard.

    The keys of the object in ``KEY.json`` become fields (``messages``, ``tools``, ...), ``KEY.txt`` becomes ``text``;
    other members are bytes under their extension ("0.jpg"). Raises ShardError, with the record's place, where one of
    the two does not parse, both are missing, or a key of the object is also the name of a member.
    """
    members = record.members
    if "json" not in members and "txt" not in members:
        held = ", ".join(members) or "nothing"
        raise ShardError(f"{record.where}: neither json nor txt, but {held}; {FORMAT}")
    fields: dict[str, Any] = {name: data for name, data in members.items() if name not in ("json", "txt")}
    if "txt" in members:
        _add(record, fields, "text", _decode(record, members["txt"]))
    if "json" in members:
        for name, value in _parse(record, members["json"]).items():
            _add(record, fields, name, value)
    return fields


def _add(record: Record, fields: dict[str, Any], name: str, value: Any) -> None:
    if name in fields:
        raise ShardError(f"{record.where}: two members give the field {name!r}; rename one of them")
    fields[name] = value


def _decode(record: Record, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ShardError(f"{record.where}: the txt member is not UTF-8 ({error}); write it as UTF-8") from error


def _parse(record: Record, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{record.where}: the json member does not parse ({error}); {FORMAT}") from error
    if not isinstance(content, dict):
        raise ShardError(f"{record.where}: the json member is no object but {type(content).__name__}; {FORMAT}")
    return content
