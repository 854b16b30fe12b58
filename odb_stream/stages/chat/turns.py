"""Finds where each assistant turn begins and ends in a rendered skeleton, by the rules learnt from the template."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odb_stream.stages.chat.messages import image_count, texts_of
from odb_stream.stages.chat.rendering import Renderer, RenderError
from odb_stream.stages.chat.skeleton import THINK_END, Skeleton, common_start, lead_and_trail, numbers_in, split

MARK_IT = (
    "enclose what the assistant says, its end token included, in {% generation %} ... {% endgeneration %} in the "
    "template and give it as ChatTemplate(processor, template=TEXT)"
)


class Anchor(NamedTuple):
    """A place in a rendered skeleton: the character ``offset`` of literal number ``literal``."""

    literal: int
    offset: int


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What a template without generation marks writes around assistant turns, learnt at construction.

    Attributes:
        terminator: follows an assistant's content and ends the turn ("<|im_end|>").
        call_terminator: ends a turn of tool calls.
        certain: whether both hold a token of the vocabulary. No content can spell such a token, so the first one found
            is the end of the turn.
        introduction: what opens a turn in a template without a generation prompt; it is not supervised.
        overhang: what the generation prompt writes beyond the header of a finished turn ("<think>" and a line break).
        epilogue: what a template without a generation prompt writes only after the last turn of a chat.
        prompt: the generation prompt up to the overhang, if it holds a token of the vocabulary: a turn begins after
            the last prompt before its content.
        tails: by role, what follows the content of a message up to the end of the generation prompt.
    """

    terminator: str
    call_terminator: str
    certain: bool
    introduction: str = ""
    overhang: str = ""
    epilogue: str = ""
    prompt: str = ""
    tails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkeletonLayout:
    """A rendered skeleton: literals, the placeholders between them, and the assistant turns.

    ``turns`` holds the begin and end of each assistant turn in order. It is empty for a template with generation marks,
    which show the turns themselves. ``problem`` says what was not found; it is empty if nothing is missing.
    """

    literals: list[str]
    order: list[int]
    turns: list[tuple[Anchor, Anchor]]
    problem: str = ""


def rendered_layout(renderer: Renderer, skeleton: Skeleton, rules: TurnRules | None) -> SkeletonLayout:
    """Render a skeleton and find its assistant turns; without rules (the template has marks), only its placeholders."""
    text = renderer.render(skeleton.messages, skeleton.tools, same_time=True).text
    literals, order = split(text)
    problem = _unrendered(skeleton, set(order)) or _unrendered_image(renderer, skeleton, text)
    if problem or rules is None:
        return SkeletonLayout(literals, order, [], problem)
    search = _TurnSearch(renderer, skeleton, rules, literals, order)
    turns: list[tuple[Anchor, Anchor]] = []
    for turn, message in enumerate(skeleton.messages):
        if message["role"] != "assistant":
            continue
        start = search.start(turn)
        end = search.end(turn, start) if start is not None else None
        # A span in the wrong place would train the model on the user's words without any sign of it: refuse instead.
        if start is None or end is None or end <= start or (turns and start < turns[-1][1]):
            what = "begins" if start is None else "ends"
            problem = f"where turn {turn} (assistant) {what} cannot be determined; {MARK_IT}"
            return SkeletonLayout(literals, order, [], problem)
        turns.append((start, end))
    return SkeletonLayout(literals, order, turns)


def _unrendered(skeleton: Skeleton, rendered: set[int]) -> str:
    """Name the first content that the template leaves out. It may leave out the reasoning in a think block."""
    for turn, message in enumerate(skeleton.messages):
        said = "".join(texts_of(message))
        if message["role"] == "assistant":
            said = said.rpartition(THINK_END)[2]
        if not rendered.issuperset(numbers_in(said)):
            return f"the template does not render the content of turn {turn} ({message['role']}); {ADD_ROLE}"
        for call in message.get("tool_calls", ()):
            if not rendered.issuperset(numbers_in(call.get("function", call)["name"])):
                return f"the template does not render the tool call of turn {turn} (assistant); {ADD_ROLE}"
    return ""


def _unrendered_image(renderer: Renderer, skeleton: Skeleton, text: str) -> str:
    """Name the first turn whose image parts are not rendered: without them the rendering is the same."""
    for turn, message in enumerate(skeleton.messages):
        if not image_count(message):
            continue
        bare = {**message, "content": [part for part in message["content"] if part["type"] == "text"]}
        messages = [*skeleton.messages[:turn], bare, *skeleton.messages[turn + 1 :]]
        try:
            same = renderer.render(messages, skeleton.tools, same_time=True).text == text
        except RenderError:
            same = False
        if same:
            return (
                f"the chat template of {renderer.name} renders nothing for the image of turn {turn} "
                f"({message['role']}); {ADD_ROLE}"
            )
    return ""


ADD_ROLE = "take it out of the chat, or give a template that renders it: ChatTemplate(processor, template=TEXT)"


@dataclass(frozen=True, slots=True)
class _TurnSearch:
    """The search for the turns of one skeleton. Each method tries the surest way first and falls back on the next."""

    renderer: Renderer
    skeleton: Skeleton
    rules: TurnRules
    literals: list[str]
    order: list[int]

    def _own(self, turn: int) -> list[int]:
        """The gaps between literals that hold text of this turn."""
        return [gap for gap, number in enumerate(self.order) if self.skeleton.turns[number] == turn]

    def start(self, turn: int) -> Anchor | None:
        """Where the generation prompt before this turn ends in the rendering of the whole chat."""
        own = self._own(turn)
        before = self.skeleton.messages[turn - 1]["role"] if turn else ""
        # The usual case, without a further rendering: the text between two neighbours begins with a tail that is known.
        if own and own[0] and self.skeleton.turns[self.order[own[0] - 1]] == turn - 1 and before in self.rules.tails:
            offset = self._after_prompt(self.literals[own[0]], self.rules.tails[before])
            if offset is not None:
                return Anchor(own[0], offset)
        return self._start_after_prefix(turn, own) or self._start_after_prompt(own)

    def _start_after_prompt(self, own: list[int]) -> Anchor | None:
        """After the last generation prompt: for chats whose beginning renders differently by itself, or not at all."""
        found = self.literals[own[0]].rfind(self.rules.prompt) if own and self.rules.prompt else -1
        return None if found < 0 else Anchor(own[0], found + len(self.rules.prompt))

    def _start_after_prefix(self, turn: int, own: list[int]) -> Anchor | None:
        """Where the messages before a turn, rendered with the generation prompt, end in the whole rendering."""
        try:
            prefix = self.renderer.render(
                self.skeleton.messages[:turn], self.skeleton.tools, prompt=True, same_time=True
            )
        except RenderError:
            return None
        literals, order = split(prefix.text)
        literal = 0
        if order:  # the place after the same placeholder in the rendering of the whole chat
            literal = 1 + max((gap for gap, number in enumerate(self.order) if number == order[-1]), default=-1)
        if literal == 0 < len(order) or (own and literal != own[0]):
            return None
        offset = self._after_prompt(self.literals[literal], literals[-1])
        return None if offset is None else Anchor(literal, offset)

    def _after_prompt(self, header: str, tail: str) -> int | None:
        """Where the supervised part of a turn begins in the text before its content; None if that lacks the tail."""
        whole = tail + self.rules.introduction
        if header.startswith(whole):
            return len(whole)
        for surplus in (self.rules.overhang, self.rules.epilogue):
            if surplus and tail.endswith(surplus):
                finished = tail.removesuffix(surplus) + self.rules.introduction
                if header.startswith(finished):
                    return len(finished)
        return None

    def end(self, turn: int, start: Anchor) -> Anchor | None:
        """Where the terminator of this turn ends."""
        own = self._own(turn)
        literal, begin = (own[-1] + 1, 0) if own else start
        after = self.literals[literal]
        message = self.skeleton.messages[turn]
        if "tool_calls" in message:
            offset = self._end_of_calls(turn, after)
        else:
            content = message.get("content", "")
            if not isinstance(content, str):  # after a last part that is an image, the terminator is searched for
                content = content[-1].get("text", "")
            trail = lead_and_trail(content)[1] if own else content
            offset = self._end_of_content(after, begin, trail)
        return None if offset is None else Anchor(literal, offset)

    def _end_of_content(self, after: str, begin: int, trail: str) -> int | None:
        """The end of the terminator. It follows at once, or after the white space that the content ends with."""
        terminator = self.rules.terminator
        for rest in (trail, trail.rstrip(), ""):
            if after.startswith(rest + terminator, begin):
                return begin + len(rest) + len(terminator)
        found = after.find(terminator, begin) if self.rules.certain else -1
        return None if found < 0 else found + len(terminator)

    def _end_of_calls(self, turn: int, after: str) -> int | None:
        """The end of the terminator after the arguments of the calls, which may have any length and form."""
        terminator = self.rules.call_terminator
        if self.rules.certain:
            found = after.find(terminator)
        else:
            ended = self.renderer.render(self.skeleton.messages[: turn + 1], self.skeleton.tools, same_time=True)
            found = common_start([split(ended.text)[0][-1], after]).rfind(terminator)
        return None if found < 0 else found + len(terminator)


def last_token_end(text: str, tokens: re.Pattern[str] | None) -> int:
    """Where the last added token of the vocabulary in a text ends; 0 if it holds none."""
    return max((found.end() for found in tokens.finditer(text)), default=0) if tokens is not None else 0
