"""Renders a chat template with jinja2 alone, as transformers would, and sees what its generation marks enclose."""

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

# Halves of surrogate pairs: they cannot occur in valid text, so a mark is never mistaken for content.
_GENERATION_START = "\udbe0"
_GENERATION_END = "\udbe1"
_MARKS = re.compile(f"([{_GENERATION_START}{_GENERATION_END}])")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class RenderError(OdbStreamError):
    """The template raised on these messages; the text is the template's own."""


class Rendering(NamedTuple):
    """The rendered text and the character spans, in order, that the template's generation marks enclose."""

    text: str
    generated: list[Span]


class Renderer:
    """One compiled template with the variables that do not change from chat to chat; picklable.

    Args:
        template: the Jinja text.
        variables: special tokens by name and the user's own template arguments.
        name: what the template belongs to, for messages.
        takes_parts: give every content as a list of parts, to a template that does not render strings.
    """

    def __init__(self, template: str, variables: Mapping[str, Any], name: str, takes_parts: bool = False) -> None:
        self.takes_parts = takes_parts
        self.template = template
        self.variables = dict(variables)
        self.name = name
        self.has_marks = _GENERATION_TAG.search(template) is not None
        self.tells_time = "strftime_now" in template
        self._now = datetime.now()
        environment = _environment()
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
        """Render a chat, with the generation prompt after it if ``prompt``.

        ``same_time`` keeps the clock that the template may read where the last rendering saw it. Raises RenderError.
        """
        if self.tells_time and not same_time:
            self._now = datetime.now()
        if self.takes_parts:
            messages = [_in_parts(message) for message in messages]
        try:
            marked = self._compiled.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self.variables
            )
        # A template is a program of the user's: it raises by raise_exception, and by any slip such as None + "".
        except Exception as error:
            raise RenderError(str(error) or type(error).__name__) from error
        return _without_marks(marked) if self.has_marks else Rendering(marked, [])

    def constants(self) -> set[str]:
        """The strings written in the template's expressions: what it may look for in a content."""
        return {node.value for node in self._tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}``: puts a mark before and after what the block renders."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_GENERATION_START}{caller()}{_GENERATION_END}"


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _without_marks(marked: str) -> Rendering:
    """Take the marks out and note the outermost spans they enclosed."""
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
