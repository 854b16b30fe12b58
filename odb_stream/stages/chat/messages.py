"""Checks the messages and tools of a chat and brings them into the plain form that a chat template reads."""

import json
from typing import Any, NamedTuple

from odb_stream.errors import StageError

ROLES = ("system", "user", "assistant", "tool")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class BadChat(StageError):
    """A chat of the wrong shape. The text does not name the sample: the stage adds that."""


class ImagePart(NamedTuple):
    """An image part: its place in words, and the member it names (None: the next image of the sample)."""

    place: str
    name: str | None


def plain_messages(messages: object) -> list[Message]:
    """The messages as a template takes them, without fields that are None. The input is not changed.

    A content is a string, or, if it holds an image part, a list of ``{"type": "text", "text"}`` and
    ``{"type": "image"}`` parts. Raises BadChat, whose text names the turn (from 0) and the way out.
    """
    if not isinstance(messages, list):
        raise BadChat(f"messages must be a list of {{'role', 'content'}} objects, not {_kind(messages)}")
    if not messages:
        raise BadChat("messages is an empty list: a chat needs at least one message; drop such samples")
    return [_plain_message(message, turn) for turn, message in enumerate(messages)]


def image_parts(messages: object) -> list[ImagePart]:
    """The image parts of a chat, in order. Raises BadChat as :func:`plain_messages` does."""
    plain_messages(messages)
    assert isinstance(messages, list)  # checked just now
    return [
        ImagePart(_place(number, message["role"], turn), part.get("image"))
        for turn, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for number, part in enumerate(message["content"])
        if part["type"] == "image"
    ]


def texts_of(message: Message) -> list[str]:
    """The texts of a plain message's content: one for a string, else one for each text part."""
    content = message.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def image_count(message: Message) -> int:
    """The image parts of a plain message's content."""
    content = message.get("content", "")
    return 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)


def parsed_tools(tools: object) -> list[Any] | None:
    """The tools as a list, parsed if they are a JSON string; None if there are none (absent, null or an empty list)."""
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
            f"{place} holds U+{ord(text[error.start]):04X}, half of a surrogate pair, which is not valid text: "
            "save the file as UTF-8"
        ) from error


def _plain_message(message: object, turn: int) -> Message:
    if not isinstance(message, dict):
        raise BadChat(f"turn {turn} must be an object with 'role' and 'content', not {_kind(message)}")
    if "role" not in message:
        raise BadChat(f"turn {turn} has no 'role': give one of {', '.join(ROLES)}")
    role = message["role"]
    if role not in ROLES:
        raise BadChat(f"turn {turn} has the unknown role {role!r}: rename it to one of {', '.join(ROLES)}")
    # Templates ask whether a field is defined, and a None is. Datasets that store columns write None for "absent".
    plain = {name: value for name, value in message.items() if value is not None}
    calls = plain.get("tool_calls")
    if calls == []:
        del plain["tool_calls"]
    elif calls is not None:
        _require_calls(calls, role, turn)
    if "content" in plain:
        plain["content"] = _plain_content(plain["content"], role, turn)
    elif not calls:
        raise BadChat(f"turn {turn} ({role}) has no content: give a string (it may be empty) or parts")
    for field in REASONING_FIELDS:
        if field in plain and not isinstance(plain[field], str):
            raise BadChat(f"{field} of turn {turn} ({role}) must be a string, not {_kind(plain[field])}")
    return _with_reasoning_names(plain)


def _plain_content(content: object, role: str, turn: int) -> str | list[dict[str, str]]:
    """A string, with text parts joined without a separator; the list of parts if one of them is an image."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadChat(
            f"content of turn {turn} ({role}) must be a string or a list of {{'type': 'text', 'text'}} and "
            f"{{'type': 'image'}} parts, not {_kind(content)}"
        )
    parts: list[dict[str, str]] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image"):
            raise BadChat(_refusal(part, kind, _place(number, role, turn)))
        if kind == "text" and not isinstance(part.get("text"), str):
            raise BadChat(f"{_place(number, role, turn)} is of type 'text' but its 'text' is not a string")
        if kind == "image" and not isinstance(part.get("image"), str | None):
            raise BadChat(
                f"{_place(number, role, turn)} holds an image of type {type(part['image']).__name__}: give the name of "
                "a member such as '0.jpg', or leave the name out and give the images in order"
            )
        # The name of an image is for MeasureImages. Templates test parts for keys, so they get nothing but the type.
        parts.append({"type": "text", "text": part["text"]} if kind == "text" else {"type": "image"})
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _place(number: int, role: str, turn: int) -> str:
    return f"part {number} of turn {turn} ({role})"


def _refusal(part: object, kind: object, place: str) -> str:
    if kind is None:
        return f"{place} must be an object with a 'type', not {_kind(part)}"
    if kind in ("video", "video_url"):
        return f"{place} is of type {kind!r}: video is not supported; drop the sample, or give frames as images"
    return f"{place} is of type {kind!r}: only parts of type 'text' and 'image' are read; remove the part"


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
    """Give a turn's reasoning under both names that templates read, whichever name the data use."""
    reasoning = next((message[field] for field in REASONING_FIELDS if field in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
