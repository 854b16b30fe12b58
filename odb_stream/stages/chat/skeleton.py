"""Finds where a rendering holds each content: by rendering the same chat with placeholders and comparing.

A skeleton is a chat whose contents are replaced by numbered placeholders. Its rendering is a row of literals (what the
template writes) with placeholders between them. If the literals with the contents put back are exactly the real
rendering, the place of every content is known, however short it is and however often it occurs elsewhere.

Example: ``[user "a", assistant "a"]`` becomes ``[user <0>, assistant <1>]`` and renders as ``U:<0>;A:<1>;``, so the
literals are ``U:``, ``;A:`` and ``;``. The real rendering ``U:a;A:a;`` agrees, and the answer is its character 6.

White space around a content stays outside its placeholder, so a template that trims treats both renderings alike. A
template that searches contents for something ("</think>") finds it in the other kinds of skeleton, which keep every
string of the template's own expressions and hide only the text between them.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from odb_stream.stages.chat.messages import REASONING_FIELDS, Message, require_unicode
from odb_stream.stages.chat.rendering import Span

# Halves of surrogate pairs: valid text cannot contain them, so content is never mistaken for a placeholder.
_OPEN = "\udbf0"
_CLOSE = "\udbf1"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
THINK_END = "</think>"

Shape = tuple[tuple[str, str | tuple[str | None, ...]], ...]
"""Roles and contents with placeholders, in hashable form: all that the rendering of a plain chat's skeleton depends on.

A content of parts is a tuple of their texts, None for an image."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A chat with placeholders.

    ``values[n]`` is the text behind placeholder n and ``turns[n]`` the turn it belongs to (None: the tools). ``shape``
    is None if there are tools, or messages with more than a role and a content.
    """

    messages: list[Message]
    tools: list[Any] | None
    values: list[str]
    turns: list[int | None]
    shape: Shape | None


Kept = Literal["nothing", "constants", "blanks"]
"""What a skeleton keeps of the contents: nothing; the template's constants in them; or these constants, with no
placeholder in contents that are blank or hold nothing else. The last two are for templates that search contents."""


class SkeletonMaker:
    """Makes skeletons.

    Args:
        specials: finds the spellings of special tokens. Each spelling in tools, in the arguments of a call and in other
            fields gets a placeholder of its own.
        constants: finds the strings of the template's expressions.
    """

    def __init__(self, specials: re.Pattern[str] | None, constants: re.Pattern[str] | None) -> None:
        self._specials = specials
        spellings = [pattern.pattern for pattern in (specials, constants) if pattern is not None]
        self._landmarks = re.compile("|".join(spellings)) if spellings else None

    def make(self, messages: list[Message], tools: list[Any] | None, kept: Kept = "nothing") -> Skeleton:
        """The skeleton of a chat. Raises BadChat for text that is not valid."""
        hider = _Hider(self._specials, None if kept == "nothing" else self._landmarks, kept == "blanks")
        skeletons = []
        for turn, message in enumerate(messages):
            hider.turn = turn
            skeletons.append(hider.message(message))
        hider.turn = None
        hidden_tools = None if tools is None else hider.leaves(tools)
        shape = None
        if tools is None and all(message.keys() == {"role", "content"} for message in skeletons):
            shape = tuple((message["role"], _hashable(message["content"])) for message in skeletons)
        return Skeleton(skeletons, hidden_tools, hider.values, hider.turns, shape)


@dataclass(slots=True)
class _Hider:
    """Replaces texts by placeholders and records the text and turn of each."""

    specials: re.Pattern[str] | None
    landmarks: re.Pattern[str] | None
    keep_blanks: bool
    turn: int | None = None
    values: list[str] = field(default_factory=list)
    turns: list[int | None] = field(default_factory=list)

    def hide(self, text: str) -> str:
        self.values.append(text)
        self.turns.append(self.turn)
        return f"{_OPEN}{len(self.values) - 1}{_CLOSE}"

    def message(self, message: Message) -> Message:
        skeleton: Message = {}
        for name, value in message.items():
            if name == "role":
                skeleton[name] = value
            elif name == "content":
                # Templates test whether a turn with calls has a content, so a blank one stays blank there.
                skeleton[name] = self.content(value, keep_blank=self.keep_blanks or "tool_calls" in message)
            elif name in REASONING_FIELDS:
                skeleton[name] = self.text(value, keep_blank=True)
            elif name == "tool_calls":
                skeleton[name] = [self.call(call) for call in value]
            else:
                skeleton[name] = self.leaves(value)
        return skeleton

    def content(self, content: str | list[dict[str, str]], *, keep_blank: bool) -> str | list[dict[str, str]]:
        """A content with its texts hidden; image parts stay as they are."""
        if isinstance(content, str):
            return self.text(content, keep_blank=keep_blank)
        return [
            {**part, "text": self.text(part["text"], keep_blank=keep_blank)} if part["type"] == "text" else part
            for part in content
        ]

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        """A call with the name of its function hidden: the one placeholder that every call has."""
        if "function" in call:
            rest = {name: self.leaves(value) for name, value in call.items() if name != "function"}
            return rest | {"function": self.call(call["function"])}
        rest = {name: self.leaves(value) for name, value in call.items() if name != "name"}
        return {"name": self.text(call["name"], keep_blank=False)} | rest

    def text(self, text: str, *, keep_blank: bool) -> str:
        """Hide a text, or, if landmarks are kept, only what lies between them."""
        require_unicode(text, self.turn)
        if not text.strip():
            # An empty placeholder still marks the place of a blank content, which may end a turn.
            return text if keep_blank else text + self.hide("")
        if self.landmarks is None:
            return self.around(text)
        parts: list[str] = []
        done, before = 0, len(self.values)
        for found in self.landmarks.finditer(text):
            spelled = self.specials is not None and self.specials.fullmatch(found[0])
            parts += self.around(text[done : found.start()]), self.hide(found[0]) if spelled else found[0]
            done = found.end()
        parts.append(self.around(text[done:]))
        if len(self.values) == before and not keep_blank:  # only landmarks: their place is marked by an empty one
            parts.append(self.hide(""))
        return "".join(parts)

    def around(self, text: str) -> str:
        """Hide a text except for the white space around it."""
        core = text.strip()
        if len(core) == len(text):
            return self.hide(text) if text else text
        start = text.index(core)
        return text[:start] + self.hide(core) + text[start + len(core) :] if core else text

    def leaves(self, value: Any) -> Any:
        """Hide the spellings of special tokens in every string of a JSON value."""
        if isinstance(value, str):
            require_unicode(value, self.turn)
            return value if self.specials is None else self.specials.sub(lambda found: self.hide(found[0]), value)
        if isinstance(value, dict):
            return {self.leaves(key): self.leaves(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.leaves(item) for item in value]
        return value


def _hashable(content: str | list[dict[str, str]]) -> str | tuple[str | None, ...]:
    return content if isinstance(content, str) else tuple(part.get("text") for part in content)


def split(text: str) -> tuple[list[str], list[int]]:
    """The literals of a rendered skeleton and the placeholders between them; there is one more literal."""
    parts = _PLACEHOLDER.split(text)
    return parts[0::2], [int(number) for number in parts[1::2]]


def common_start(texts: list[str]) -> str:
    """The longest string that all of these texts begin with."""
    # The extremes in alphabetical order differ as early as any two texts do.
    shortest, longest = min(texts), max(texts)
    for at, letter in enumerate(shortest):
        if longest[at] != letter:
            return shortest[:at]
    return shortest


def lead_and_trail(content: str) -> tuple[str, str]:
    """The text before the first and after the last placeholder of a skeleton's content."""
    parts = _PLACEHOLDER.split(content)
    return (parts[0], parts[-1]) if len(parts) > 1 else (content, "")


def numbers_in(text: str) -> list[int]:
    """The placeholders in a piece of a skeleton, in order."""
    return [int(number) for number in _PLACEHOLDER.findall(text)]


def places(text: str, literals: list[str], order: list[int], values: list[str]) -> list[Span] | None:
    """Where the text of each placeholder lies in the real rendering; None if the two disagree anywhere.

    A text may be written as it is, or escaped as in a JSON string (a template's ``tojson``).
    """
    if not text.startswith(literals[0]):
        return None
    spans: list[Span] = []
    at = len(literals[0])
    for number, following in zip(order, literals[1:], strict=True):
        value = values[number]
        end = at + len(value)
        if not (text.startswith(value, at) and text.startswith(following, end)):
            value = json.dumps(value, ensure_ascii=False)[1:-1]
            end = at + len(value)
            if not (text.startswith(value, at) and text.startswith(following, end)):
                return None
        spans.append((at, end))
        at = end + len(following)
    return spans if at == len(text) else None
