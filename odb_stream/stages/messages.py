"""Checks the messages of a chat and brings them into the plain form that a chat template reads."""

import json
from typing import Any

from odb_stream.errors import StageError

ROLES = ("system", "user", "assistant", "tool")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class BadChat(StageError):
    """A chat of the wrong shape; the text has no place yet, the stage adds it."""


def plain_messages(messages: object) -> list[Message]:
    """The messages with contents as strings and without fields that are None; the input is left as it is.

    Raises BadChat, whose text names the turn (from 0) and the way out.
    """
    if not isinstance(messages, list):
        raise BadChat(f"messages must be a list of {{'role', 'content'}} objects, not {_kind(messages)}")
    if not messages:
        raise BadChat("messages is an empty list: a chat needs at least one message; leave such samples out")
    return [_plain_message(message, turn) for turn, message in enumerate(messages)]


def parsed_tools(tools: object) -> list[Any] | None:
    """The tools as a list; a JSON string is parsed; None where there are none (absent, null or an empty list)."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except json.JSONDecodeError as error:
            raise BadChat(f"tools is a string that is not JSON ({error}): give a list of tool descriptions") from error
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadChat(f"tools must be a list of tool descriptions (objects), not {_kind(tools)}")
    return tools


def require_unicode(text: str, turn: int | None) -> None:
    """Raise BadChat if the text holds half a surrogate pair, which no tokenizer can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = "tools" if turn is None else f"turn {turn}"
        raise BadChat(
            f"{place} holds U+{ord(text[error.start]):04X}, half of a surrogate pair: it is not valid text, write the "
            "file again as UTF-8"
        ) from error


def _plain_message(message: object, turn: int) -> Message:
    if not isinstance(message, dict):
        raise BadChat(f"turn {turn} must be an object with 'role' and 'content', not {_kind(message)}")
    if "role" not in message:
        raise BadChat(f"turn {turn} has no 'role': give one of {', '.join(ROLES)}")
    role = message["role"]
    if role not in ROLES:
        raise BadChat(f"turn {turn} has the unknown role {role!r}: rename it to one of {', '.join(ROLES)}")
    plain = {name: value for name, value in message.items() if value is not None}
    calls = plain.get("tool_calls")
    if calls == []:
        del plain["tool_calls"]
    elif calls is not None:
        _require_calls(calls, role, turn)
    if "content" in plain:
        plain["content"] = _text_of(plain["content"], role, turn)
    elif not calls:
        raise BadChat(f"turn {turn} ({role}) has no content: give a string (it may be empty) or text parts")
    for field in REASONING_FIELDS:
        if field in plain and not isinstance(plain[field], str):
            raise BadChat(f"{field} of turn {turn} ({role}) must be a string, not {_kind(plain[field])}")
    return _with_reasoning_names(plain)


def _text_of(content: object, role: str, turn: int) -> str:
    """A content as one string: itself, or its text parts put together without anything between them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadChat(
            f"content of turn {turn} ({role}) must be a string or a list of {{'type': 'text', 'text'}} parts, not "
            f"{_kind(content)}"
        )
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise BadChat(_refusal(part, kind, f"part {number} of turn {turn} ({role})"))
        if not isinstance(part.get("text"), str):
            raise BadChat(f"part {number} of turn {turn} ({role}) is of type 'text' but its 'text' is not a string")
        texts.append(part["text"])
    return "".join(texts)


def _refusal(part: object, kind: object, place: str) -> str:
    if kind is None:
        return f"{place} must be an object with a 'type', not {_kind(part)}"
    if kind in ("video", "video_url"):
        return f"{place} is of type {kind!r}: video is not supported; leave the sample out or give frames as images"
    return f"{place} is of type {kind!r}: ChatTemplate reads only parts of type 'text'; take the part out"


def _require_calls(calls: object, role: str, turn: int) -> None:
    if role != "assistant":
        raise BadChat(f"turn {turn} ({role}) has tool_calls: only assistant turns may call tools")
    if not isinstance(calls, list):
        raise BadChat(f"tool_calls of turn {turn} must be a list, not {_kind(calls)}")
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadChat(
                f"tool_calls of turn {turn} must hold objects like {{'type': 'function', 'function': {{'name', "
                f"'arguments'}}}}, not {call!r:.120}"
            )


def _with_reasoning_names(message: Message) -> Message:
    """Templates read a turn's reasoning under different names: give it under the two that are in use."""
    reasoning = next((message[field] for field in REASONING_FIELDS if field in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
