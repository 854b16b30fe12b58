"""Finds where a rendering holds each content: by rendering the same chat with placeholders and comparing.

A skeleton is a chat whose contents are replaced by numbered placeholders. Its rendering is a row of literals (what the
template writes) with placeholders between them. If the literals with the contents put back are exactly the real
rendering, every content's place in it is known, however short it is, however often it occurs elsewhere.

Example: ``[user "a", assistant "a"]`` becomes ``[user <0>, assistant <1>]`` and renders as ``U:<0>;A:<1>;``, so the
literals are ``U:``, ``;A:`` and ``;``. The real rendering ``U:a;A:a;`` agrees, and the answer is its character 6.

White space around a content stays outside its placeholder, so a template that trims does the same to both. A template
that looks for something in a content ("</think>") finds it in the further kinds of skeleton, which keep every string
that is written in the template's own expressions and hide only the text between.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from odb_stream.stages.chat.messages import REASONING_FIELDS, Message, require_unicode
from odb_stream.stages.chat.rendering import Span

# Halves of surrogate pairs: they cannot occur in valid text, so a placeholder is never mistaken for content.
_OPEN = "\udbf0"
_CLOSE = "\udbf1"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
THINK_END = "</think>"

Shape = tuple[tuple[str, str | tuple[str | None, ...]], ...]
"""Roles and contents with placeholders: all that the rendering of a skeleton depends on, where it is hashable.

A content of parts is a tuple of their texts, None for an image."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A chat with placeholders.

    ``values[n]`` is the text behind placeholder n and ``turns[n]`` the turn it belongs to (None: the tools). ``shape``
    is None where the messages hold more than roles and contents.
    """

    messages: list[Message]
    tools: list[Any] | None
    values: list[str]
    turns: list[int | None]
    shape: Shape | None


Kept = Literal["nothing", "constants", "blanks"]
"""How much of the contents a skeleton keeps: nothing; the template's constants in them; these, and no placeholder in a
content that is blank or holds nothing else. The last two are for templates that look into contents."""


class SkeletonMaker:
    """Makes skeletons.

    Args:
        specials: finds the spellings of special tokens; each one in tools, in a call's arguments and in other fields
            gets a placeholder of its own.
        constants: finds the strings that the template's expressions hold.
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
    """Replaces texts by placeholders and notes what stands behind each."""

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
                # Templates ask a calling turn whether it has a content, so there a blank one stays blank.
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
        """A call with its function's name hidden: the placeholder that every call has."""
        if "function" in call:
            rest = {name: self.leaves(value) for name, value in call.items() if name != "function"}
            return rest | {"function": self.call(call["function"])}
        rest = {name: self.leaves(value) for name, value in call.items() if name != "name"}
        return {"name": self.text(call["name"], keep_blank=False)} | rest

    def text(self, text: str, *, keep_blank: bool) -> str:
        """Hide a text; where landmarks are to be kept, only what lies between them."""
        require_unicode(text, self.turn)
        if not text.strip():
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
        if len(self.values) == before and not keep_blank:  # nothing but landmarks: mark the place all the same
            parts.append(self.hide(""))
        return "".join(parts)

    def around(self, text: str) -> str:
        """Hide a text but for the white space around it."""
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
    """A rendered skeleton as literals and the placeholders between them: one literal more than placeholders."""
    parts = _PLACEHOLDER.split(text)
    return parts[0::2], [int(number) for number in parts[1::2]]


def common_start(texts: list[str]) -> str:
    """The longest string that all of these texts begin with."""
    shortest, longest = min(texts), max(texts)
    for at, letter in enumerate(shortest):
        if longest[at] != letter:
            return shortest[:at]
    return shortest


def lead_and_trail(content: str) -> tuple[str, str]:
    """What stands before the first and after the last placeholder of a skeleton's content."""
    parts = _PLACEHOLDER.split(content)
    return (parts[0], parts[-1]) if len(parts) > 1 else (content, "")


def numbers_in(text: str) -> list[int]:
    """The placeholders in a piece of a skeleton, in order."""
    return [int(number) for number in _PLACEHOLDER.findall(text)]


def places(text: str, literals: list[str], order: list[int], values: list[str]) -> list[Span] | None:
    """Where each placeholder's text lies in the real rendering; None if the two disagree anywhere.

    A text may stand as it is or as inside a JSON string.
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
