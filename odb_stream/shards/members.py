"""From the members of a record to the fields of a sample: json and txt are parsed, all others stay bytes."""

import json
from typing import Any

from odb_stream.errors import ShardError
from odb_stream.sample import Drop, Record
from odb_stream.shards.tar.faults import Reason, damaged

FORMAT = "a sample holds KEY.json (an object, with `messages`) or KEY.txt (UTF-8 text)"


def open_members(record: Record) -> dict[str, Any]:
    """The fields of a record from a shard.

    The keys of the object in ``KEY.json`` become fields (``messages``, ``tools``, ...), ``KEY.txt`` becomes ``text``;
    other members are bytes under their extension ("0.jpg"). Raises ShardError, with the record's place, if one of the
    two does not parse, both are missing, or a key of the object is also the name of a member.
    """
    fields = open_or_drop(record)
    if isinstance(fields, Drop):
        raise ShardError(fields.detail)
    return fields


def open_or_drop(record: Record) -> dict[str, Any] | Drop:
    """The same, with a drop instead of an error for a damaged sample."""
    members = record.members
    if "json" not in members and "txt" not in members:
        held = ", ".join(members) or "nothing"
        return _drop(record, "no_text", f"neither json nor txt, but {held}; {FORMAT}")
    fields: dict[str, Any] = {name: data for name, data in members.items() if name not in ("json", "txt")}
    if "txt" in members:
        if "text" in fields:
            return _twice(record, "text")
        try:
            fields["text"] = members["txt"].decode("utf-8")
        except UnicodeDecodeError as error:
            return _drop(record, "not_utf8", f"the txt member is not UTF-8 ({error}); write it as UTF-8")
    if "json" not in members:
        return fields
    try:
        content = json.loads(members["json"])
    except UnicodeDecodeError as error:
        return _drop(record, "not_utf8", f"the json member is not UTF-8 and does not parse ({error}); {FORMAT}")
    except (ValueError, RecursionError) as error:
        return _drop(record, "bad_json", f"the json member does not parse ({error}); {FORMAT}")
    if not isinstance(content, dict):
        return _drop(record, "bad_json", f"the json member is not an object but {type(content).__name__}; {FORMAT}")
    if twice := fields.keys() & content.keys():
        return _twice(record, min(twice))
    return fields | content


def _twice(record: Record, name: str) -> Drop:
    return _drop(record, "repeated_member", f"two members give the field {name!r}; rename one of them")


def _drop(record: Record, reason: Reason, what: str) -> Drop:
    return damaged(reason, f"{record.where}: {what}")
