"""Renders a chat template with jinja2 alone, as transformers does, and records what its generation marks enclose."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from odb_stream.errors import ConfigError, OdbStreamError
from odb_stream.stages.chat.messages import Message

Span = tuple[int, int]

# Halves of surrogate pairs: valid text cannot contain them, so content is never mistaken for a mark.
_GENERATION_START = "\udbe0"
_GENERATION_END = "\udbe1"
_MARKS = re.compile(f"([{_GENERATION_START}{_GENERATION_END}])")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class RenderError(OdbStreamError):
    """The template raised on these messages. The text is the template's own."""


class Rendering(NamedTuple):
    """The rendered text, and the character spans that the template's generation marks enclose, in order."""

    text: str
    generated: list[Span]


class Renderer:
    """A compiled template with the variables that are the same for every chat; picklable.

    Args:
        template: the Jinja text.
        variables: special tokens by name and the user's own template arguments.
        name: the owner of the template, for messages.
        takes_parts: give every content as a list of parts, for a template that does not render strings.
    """

    def __init__(self, template: str, variables: Mapping[str, Any], name: str, takes_parts: bool = False) -> None:
        self.takes_parts = takes_parts
        self.template = template
        self.variables = dict(variables)
        self.name = name
        self.has_marks = _GENERATION_TAG.search(template) is not None
        self.tells_time = "strftime_now" in template
        self._now = datetime.now()
        # The same settings, filters and globals as transformers' own environment: the text must be equal to its text.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        # The clock is read once a rendering, so that a chat and its skeleton show the same time; see `render`.
        environment.globals["strftime_now"] = lambda form: self._now.strftime(form)
        try:
            self._tree = environment.parse(template)
            self._compiled = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template of {name} is not valid Jinja, line {error.lineno}: {error}"
            ) from error
        self.reads_tools = "tools" in jinja2.meta.find_undeclared_variables(self._tree)

    def __reduce__(self) -> tuple[type["Renderer"], tuple[str, dict[str, Any], str, bool]]:
        return Renderer, (self.template, self.variables, self.name, self.takes_parts)

    def render(
        self, messages: list[Message], tools: list[Any] | None = None, *, prompt: bool = False, same_time: bool = False
    ) -> Rendering:
        """Render a chat, followed by the generation prompt if ``prompt``.

        With ``same_time`` a template that reads the clock sees the time of the last rendering. Raises RenderError.
        """
        if self.tells_time and not same_time:
            self._now = datetime.now()
        if self.takes_parts:
            messages = [_in_parts(message) for message in messages]
        try:
            marked = self._compiled.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self.variables
            )
        # A template is the user's program: it raises on purpose (raise_exception) and by mistakes such as None + "".
        except Exception as error:
            raise RenderError(str(error) or type(error).__name__) from error
        return _without_marks(marked) if self.has_marks else Rendering(marked, [])

    def constants(self) -> set[str]:
        """The strings in the template's expressions: all that it can search a content for."""
        return {node.value for node in self._tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}``: writes a mark before and after the output of the block."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_GENERATION_START}{caller()}{_GENERATION_END}"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes that jinja2's own filter adds; the arguments are those of transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _without_marks(marked: str) -> Rendering:
    """The text without the marks, and the outermost spans that they enclosed."""
    kept: list[str] = []
    spans: list[Span] = []
    length = depth = start = 0
    for part in _MARKS.split(marked):
        if part == _GENERATION_START:
            start = length if depth == 0 else start
            depth += 1
        elif part == _GENERATION_END:
            depth -= 1
            if depth == 0 and length > start:
                spans.append((start, length))
        else:
            kept.append(part)
            length += len(part)
    return Rendering("".join(kept), spans)
