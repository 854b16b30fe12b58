"""ChatTemplate: messages to text, with the supervised spans and the contents that spell special tokens."""

import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, get_args

from odb_stream.config import require_choice
from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop, Sample
from odb_stream.stages.chat.messages import BadChat, Message, image_count, parsed_tools, plain_messages
from odb_stream.stages.chat.probe import learn
from odb_stream.stages.chat.rendering import Renderer, RenderError, Span
from odb_stream.stages.chat.tracing import Trace, Tracer, skeleton_maker
from odb_stream.stages.chat.turns import TurnRules
from odb_stream.stages.images.files import PlannedImage
from odb_stream.stages.processor import any_of, backend_tokenizer, chat_template, describe, named_special_tokens

TrainOn = Literal["all", "last"]
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(frozen=True)
class ChatTemplate:
    """Render a chat with the model's own chat template and find what is supervised in it.

    Reads ``messages`` (and tools) and adds to the sample:

    - ``text``: the rendering, equal to ``tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)``;
    - ``spans``: the supervised character spans (start, end) of it, in order;
    - ``plain``: the character spans of contents that spell a special token ("<|im_end|>"); Tokenize encodes these as
      ordinary text, so no content can open or close a turn, or pass for an image.

    Image parts reach the template as ``{"type": "image"}`` and need their measured images in ``images``, from
    MeasureImages. The template decides what it writes for an image.

    The supervised spans are those that the template encloses in generation marks (``{% generation %}``). Without marks,
    the span of a turn begins where the generation prompt before it ends, and ends with the terminator that the template
    writes after an answer, up to the end-of-turn token; a turn of tool calls is supervised whole. If the generation
    prompt opens a think block that the template does not write in a finished turn, the span begins after the header.

    Args:
        processor: a fast tokenizer of transformers, or a processor that holds one. It is read at construction and not
            kept: the stage is sent to worker processes without it.
        template: the text of a Jinja template to use instead of the processor's, or the name of one of several.
        train_on: "all" supervises every assistant turn, "last" only the last one.
        tools_key: the field with the tools, a list or its JSON; None ignores tools.
        template_kwargs: more variables for the template, such as ``{"enable_thinking": False}``.

    Raises a ConfigError at construction if the processor has no template, or if no sound spans can be found in it. A
    call raises a StageError for messages of the wrong shape and for a content that the template does not render, and
    returns ``Drop("nothing_supervised")`` for a chat without an assistant turn.
    """

    processor: InitVar[Any]
    template: InitVar[str | None] = field(default=None, kw_only=True)
    train_on: TrainOn = field(default="all", kw_only=True)
    tools_key: str | None = field(default="tools", kw_only=True)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    name: str = field(init=False)
    source: str = field(init=False, repr=False)
    tracer: Tracer = field(init=False, repr=False, compare=False)

    def __post_init__(self, processor: Any, template: str | None) -> None:
        require_choice("train_on", self.train_on, get_args(TrainOn))
        reserved = sorted(set(self.template_kwargs).intersection(_RESERVED))
        if reserved:
            raise ConfigError(f"template_kwargs holds {reserved[0]!r}, which the stage itself passes to the template")
        name, source = describe(processor), chat_template(processor, template)
        added = backend_tokenizer(processor).get_added_tokens_decoder().values()
        specials = tuple(sorted(token.content for token in added if token.special))
        variables = {**named_special_tokens(processor), **self.template_kwargs}
        renderer, rules = _learnt(source, variables, name, specials, any_of(token.content for token in added))
        values = {"name": name, "source": source, "tracer": Tracer(renderer, specials, rules)}
        for attribute, value in {**values, "template_kwargs": dict(self.template_kwargs)}.items():
            object.__setattr__(self, attribute, value)

    def __call__(self, sample: Sample) -> Sample | Drop:
        """Render one chat; see the class."""
        renderer = self.tracer.renderer
        try:
            messages, tools = self._chat_of(sample)
            if all(message["role"] != "assistant" for message in messages):
                return Drop("nothing_supervised", f"{sample.where}: no assistant turn among {len(messages)} messages")
            text, generated = renderer.render(messages, tools)
            # The trace comes before the spans even where marks give those: it finds the contents for `plain`.
            trace = self.tracer.trace(messages, tools, text)
            spans = self._spans(messages, trace, text, generated if renderer.has_marks else None)
        except BadChat as error:
            raise StageError(f"ChatTemplate, {sample.where}: {error}") from error
        except RenderError as error:
            images = " (images need the template of a vision-language model)" if sample.get("images") else ""
            raise StageError(
                f"ChatTemplate, {sample.where}: the chat template of {self.name} refuses this chat: {error}; change "
                f"the chat to what the template takes, or drop it{images}"
            ) from error
        plain = [piece.span for piece in trace.pieces if self.tracer.spells_special(piece.text)]
        return sample.with_fields({**sample, "text": text, "spans": spans, "plain": plain})

    def _chat_of(self, sample: Sample) -> tuple[list[Message], list[Any] | None]:
        if "messages" not in sample:
            fields = ", ".join(sorted(sample)) or "none"
            raise BadChat(f"the sample has no 'messages' (its fields: {fields}); leave ChatTemplate out for plain text")
        messages = plain_messages(sample["messages"])
        _require_images(sample.get("images") or [], sum(map(image_count, messages)))
        tools = parsed_tools(sample.get(self.tools_key)) if self.tools_key is not None else None
        if tools is not None and not self.tracer.renderer.reads_tools:
            raise BadChat(
                f"the sample has tools in {self.tools_key!r}, but the chat template of {self.name} does not render "
                "tools: give a template that does, or ignore them with ChatTemplate(processor, tools_key=None)"
            )
        return messages, tools

    def _spans(self, messages: list[Message], trace: Trace, text: str, generated: list[Span] | None) -> list[Span]:
        if generated is None:
            overhang = self.tracer.rules.overhang if self.tracer.rules is not None else ""
            turns = trace.turns if self.train_on == "all" else trace.turns[-1:]
            # Step over what the generation prompt writes beyond the header, where a turn has it too.
            return [(start + len(overhang) * text.startswith(overhang, start), end) for start, end in turns]
        if self.train_on == "all":
            return generated
        answers = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        if trace.pieces:
            before = max((p.span[1] for p in trace.pieces if p.turn is not None and p.turn < answers[-1]), default=0)
            return [span for span in generated if span[0] >= before]
        if len(generated) == len(answers):
            return generated[-1:]
        raise BadChat("it is unknown which generation marks enclose the last answer; use train_on='all'")


def _learnt(
    source: str, variables: dict[str, Any], name: str, specials: tuple[str, ...], tokens: re.Pattern[str] | None
) -> tuple[Renderer, TurnRules | None]:
    """The template and its rules. A template that renders no strings is given all contents as lists of parts."""
    renderer = Renderer(source, variables, name)
    try:
        return renderer, learn(renderer, skeleton_maker(renderer, specials), tokens)
    except ConfigError as refusal:
        renderer = Renderer(source, variables, name, takes_parts=True)
        try:
            return renderer, learn(renderer, skeleton_maker(renderer, specials), tokens)
        except ConfigError:
            # The first refusal is about the chat as users write it, so it is the one that helps.
            raise refusal from None


def _require_images(images: Any, parts: int) -> None:
    """Raise BadChat unless every image part has its measured image and every image its part."""
    measured = isinstance(images, list) and all(isinstance(image, PlannedImage) for image in images)
    if not measured or len(images) != parts:
        held = f"{len(images)} measured images" if measured else "images that are not measured"
        raise BadChat(
            f"the number of image parts is {parts}, but the sample holds {held}: put MeasureImages before "
            "ChatTemplate, or remove the image parts and the field 'images'"
        )
