"""Traces one rendered chat: where its contents lie, and where the assistant's turns begin and end."""

import json
from typing import Any, NamedTuple, get_args

from odb_stream.stages.chat.messages import BadChat, Message, texts_of
from odb_stream.stages.chat.rendering import Renderer, RenderError, Span
from odb_stream.stages.chat.skeleton import THINK_END, Kept, Shape, Skeleton, SkeletonMaker, places
from odb_stream.stages.chat.turns import ADD_ROLE, Anchor, SkeletonLayout, TurnRules, rendered_layout
from odb_stream.stages.processor import any_of

# Most chats share few shapes. White space around contents is part of a shape, though, so their number has no bound.
_CACHED_LAYOUTS = 4096


class Piece(NamedTuple):
    """A part of the rendering that came from the chat: its turn (None: the tools), its text and its place."""

    turn: int | None
    text: str
    span: Span


class Trace(NamedTuple):
    """Where the contents of a chat lie in its rendering, in the order of the rendering, and its assistant turns.

    ``turns`` is empty for a template with generation marks. ``pieces`` is empty if such a template changes contents so
    that they are not found again (and no content spells a special token).
    """

    pieces: list[Piece]
    turns: list[Span]


class Tracer:
    """Traces the renderings of one template; picklable. Layouts of plain chats are cached by shape.

    Args:
        renderer: the template.
        specials: the spellings of the special tokens.
        rules: how the template opens and ends answers; None if it has generation marks.
    """

    def __init__(self, renderer: Renderer, specials: tuple[str, ...], rules: TurnRules | None) -> None:
        self.renderer = renderer
        self.specials = specials
        self.rules = rules
        self._special = any_of(specials)
        self._first_letters = sorted({special[0] for special in specials if special})
        self._maker = skeleton_maker(renderer, specials)
        self._layouts: dict[Shape, SkeletonLayout] = {}

    def __reduce__(self) -> tuple[type["Tracer"], tuple[Renderer, tuple[str, ...], TurnRules | None]]:
        return Tracer, (self.renderer, self.specials, self.rules)

    def spells_special(self, text: str) -> bool:
        """Whether a text holds the spelling of a special token."""
        # Most texts hold none of the first letters ("<"), and looking for those is many times faster than the pattern.
        if self._special is None or not any(letter in text for letter in self._first_letters):
            return False
        return self._special.search(text) is not None

    def trace(self, messages: list[Message], tools: list[Any] | None, text: str) -> Trace:
        """Trace a rendering ``text`` of these messages. Raises BadChat if a content is not rendered or not found."""
        problem = ""
        for kept in get_args(Kept):
            skeleton = self._maker.make(messages, tools, kept)
            layout, found = self._fit(skeleton, text)
            if layout is None or found is None:
                continue
            # A template that searches contents may also rewrite them: make sure that they are still there.
            here = layout.problem or ("" if kept == "nothing" else self._unfound(messages, text))
            if not here:
                return _trace(skeleton, layout, found)
            problem = problem or here
        problem = problem or self._unfound(messages, text)
        # Marks give the spans without any trace. It is then needed for special tokens in contents alone.
        if (
            not problem
            and self.renderer.has_marks
            and not self.spells_special(json.dumps([messages, tools], ensure_ascii=False, default=str))
        ):
            return Trace([], [])
        raise BadChat(
            problem
            or "the template changes the contents of this chat as it renders them, so their places are unknown; "
            "drop the sample, or give a simpler template: ChatTemplate(processor, template=TEXT)"
        )

    def _fit(self, skeleton: Skeleton, text: str) -> tuple[SkeletonLayout | None, list[Span] | None]:
        """The layout of a skeleton (None if the template raises on it), and the places of its texts if it fits."""
        kept = self._layouts.get(skeleton.shape) if skeleton.shape is not None else None
        if kept is not None:
            found = places(text, kept.literals, kept.order, skeleton.values)
            # A cached layout shows the time of its own rendering, so with a clock a misfit proves nothing.
            if found is not None or not self.renderer.tells_time:
                return kept, found
        try:
            layout = rendered_layout(self.renderer, skeleton, self.rules)
        except RenderError:
            return None, None
        if skeleton.shape is not None:
            if len(self._layouts) >= _CACHED_LAYOUTS:
                self._layouts.clear()
            self._layouts[skeleton.shape] = layout
        return layout, places(text, layout.literals, layout.order, skeleton.values)

    def _unfound(self, messages: list[Message], text: str) -> str:
        """Name the first content that occurs nowhere in the rendering."""
        for turn, message in enumerate(messages):
            for said in texts_of(message):
                if message["role"] == "assistant":
                    said = said.rpartition(THINK_END)[2]
                core = said.strip()
                if core not in text and json.dumps(core, ensure_ascii=False)[1:-1] not in text:
                    return f"the template does not render the content of turn {turn} ({message['role']}); {ADD_ROLE}"
        return ""


def skeleton_maker(renderer: Renderer, specials: tuple[str, ...]) -> SkeletonMaker:
    """The maker of skeletons for one template."""
    constants = {constant for constant in renderer.constants() if constant.strip()}
    return SkeletonMaker(any_of(specials), any_of(constants))


def _trace(skeleton: Skeleton, layout: SkeletonLayout, found: list[Span]) -> Trace:
    def place(anchor: Anchor) -> int:
        return anchor.offset + (found[anchor.literal - 1][1] if anchor.literal else 0)

    pieces = [
        Piece(skeleton.turns[number], skeleton.values[number], span)
        for number, span in zip(layout.order, found, strict=True)
    ]
    return Trace(pieces, [(place(start), place(end)) for start, end in layout.turns])
