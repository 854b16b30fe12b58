"""Write docs/reference.md from the docstrings of the package and the options of its commands: ``make reference``.

griffe reads the source without running it, so the page is the same on every machine; only the commands are imported.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import griffe
import typer.main

from odb_stream.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"

PARTS: dict[str, tuple[str, ...]] = {
    "odb_stream": (),
    "odb_stream.stages": (),
    "odb_stream.seeds": ("generator",),
    "odb_stream.checkpoint": ("merge",),
    "odb_stream.inspection": (),
    "odb_stream.live": (),
    "odb_stream.adapters.checkpoint": (),
    "odb_stream.adapters.torch": (),
    "odb_stream.adapters.meter": (),
    "odb_stream.adapters.huggingface": ("LoaderMixin", "StreamTrainer"),
    "odb_stream.adapters.accelerate": (),
    "odb_stream.adapters.lightning": (),
}
"""Module -> its public names. Without any, they are those in ``__all__``, else the functions and classes it defines."""

SPECIAL_METHODS = ("__call__", "__iter__")
WIDTH = 100


def main(page: Path) -> None:
    parts = [part for name, names in PARTS.items() for part in module(name, names)]
    parts += ["## The command line", *commands()]
    headings = [found.groups() for part in parts if (found := re.fullmatch(r"(##|###) (.+)", part))]
    contents = [f"{'  ' * (len(level) - 2)}- [{words}](#{anchor(words)})" for level, words in headings]
    intro = (
        "# Reference\n\nEvery public name with its arguments, results and errors, then every command with its options. "
        "It is written from the\ndocstrings by `make reference`: change those, not this page."
    )
    page.write_text("\n\n".join([intro, "\n".join(contents), *parts]) + "\n", encoding="utf-8")


def anchor(heading: str) -> str:
    """What GitHub makes of a heading as the target of a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# Modules


PACKAGE = griffe.load(
    "odb_stream", search_paths=[ROOT], allow_inspection=False,
    docstring_parser="google", docstring_options={"warnings": False},
)  # fmt: skip


def module(name: str, names: tuple[str, ...]) -> Iterator[str]:
    """A module and its public names, as paragraphs."""
    found = PACKAGE[name.partition(".")[2]] if "." in name else PACKAGE
    yield f"## `{name}`"
    yield from described(found)
    # Without any given or in ``__all__``, those that the module defines itself, in the order of its source.
    defined = (
        name for name, member in found.members.items()
        if not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)
    )  # fmt: skip
    for public in names or tuple(map(str, found.exports or ())) or defined:
        member = found[public]
        member = member.final_target if member.is_alias else member
        if not member.is_module:
            yield f"### `{name}.{public}`"
            yield from (class_text if member.is_class else function_text)(member)


def function_text(function: Any) -> Iterator[str]:
    yield code(signature(function))
    yield from described(function)


def class_text(cls: Any) -> Iterator[str]:
    """A class: its constructor, docstring, fields, properties and methods."""
    made = cls.members.get("__init__")
    fields = [member for member in cls.members.values() if is_field(member)]
    bases = ", ".join(f"`{base}`" for base in cls.bases if getattr(found_at(base.canonical_path), "is_class", True))
    if made is not None:
        yield code(signature(made, cls.name))
    elif fields and bases == "`NamedTuple`":
        yield code(laid_out(cls.name, [f"{field.name}: {typed(field.annotation)}" for field in fields], ""))
    if bases:
        yield f"Based on {bases}."
    yield from described(cls)
    lists = [section.value for section in sections(cls) if section.kind.value in ("parameters", "attributes")]
    explained = {given.name for entries in lists for given in entries}
    if new := [field for field in fields if field.docstring and field.name not in explained]:
        yield "Fields:"
        yield "\n".join(item(f"`{field.name}`", prose(field.docstring.value)) for field in new)
    # The public members with a docstring, in the order of the source.
    shown = [
        member for name, member in cls.members.items()
        if (not name.startswith("_") or name in SPECIAL_METHODS) and not member.is_alias and member.docstring
    ]  # fmt: skip
    if properties := [member for member in shown if "property" in member.labels]:
        yield "Properties:"
        types = {member.name: f"`{member.name}` (`{typed(member.annotation)}`)" for member in properties}
        yield "\n".join(item(types[member.name], prose(member.docstring.value)) for member in properties)
    for member in shown:
        if member.is_function:
            yield f"#### `{cls.name}.{member.name}`"
            yield from function_text(member)


def is_field(member: Any) -> bool:
    named = member.is_attribute and "property" not in member.labels and not member.name.startswith("_")
    return named and member.annotation is not None


# Signatures


def signature(function: Any, name: str | None = None) -> str:
    """``name(parameters) -> result``, on one line if it is short, else a line for each parameter."""
    shown: list[str] = []
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind.value
        if kind == "keyword-only" and not any(given.startswith("*") for given in shown):
            shown.append("*")
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        annotation = f": {typed(parameter.annotation)}" if parameter.annotation else ""
        default = "" if parameter.default is None or stars else f" = {double_quoted(str(parameter.default))}"
        shown.append(f"{stars}{parameter.name}{annotation}{default}")
    returns = "" if name or not function.returns else f" -> {typed(function.returns)}"
    return laid_out(name or function.name, shown, returns)


def laid_out(name: str, parameters: list[str], returns: str) -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    return line if len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){returns}"


def typed(annotation: Any) -> str:
    """An annotation; in place of the package's names for a ``Literal``, the choices, which readers need."""
    text = str(annotation)
    for part in annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ():
        value = str(getattr(found_at(getattr(part, "canonical_path", "")), "value", ""))
        if value.startswith("Literal["):
            text = re.sub(rf"\b{part.name}\b", value, text)
    return double_quoted(re.sub(r"^'(.*)'$", r"\1", text))


def double_quoted(text: str) -> str:
    return re.sub(r"""'([^'"]*)'""", r'"\1"', text)


def found_at(path: str) -> Any:
    """The object at a dotted path of the package, or None."""
    try:
        found = PACKAGE[path.removeprefix("odb_stream.")] if path.startswith("odb_stream.") else None
    except KeyError:
        return None
    return found.final_target if found is not None and found.is_alias else found


# Docstrings


def sections(found: Any) -> list[Any]:
    return found.docstring.parsed if found.docstring else []


def described(found: Any) -> Iterator[str]:
    """The paragraphs of a docstring; arguments, results and errors as lists."""
    for section in sections(found):
        kind = section.kind.value
        if kind == "text":
            yield prose(section.value)
        elif kind in ("parameters", "attributes"):
            yield "Arguments:" if kind == "parameters" else "Attributes:"
            yield "\n".join(item(", ".join(f"`{name}`" for name in given.name.split(", ")), prose(given.description))
                            for given in section.value)  # fmt: skip
        elif kind == "raises":
            yield "Raises:"
            yield "\n".join(item(f"`{given.annotation}`", prose(given.description)) for given in section.value)
        elif kind in ("returns", "yields"):
            yield f"{kind.capitalize()}:"
            yield "\n".join(item("", prose(given.description)) for given in section.value)
        else:
            raise SystemExit(f"{found.path}: the page has no form for a section {kind!r}: write it as plain text")


def item(name: str, words: str) -> str:
    """One entry of a list, its further lines indented under the first."""
    return f"- {name}: {words}".replace("- : ", "- ").replace("\n", "\n  ")


def prose(text: str) -> str:
    """Words of a docstring in Markdown: code in single backquotes, a block after ``::`` as a fence."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.strip()).replace("``", "`") + "\n"
    indented = re.compile(r"::\n\n((?: {4}.*\n|\n)+)")
    return indented.sub(lambda found: f":\n\n{code(dedent(found[1]).strip())}\n\n", text).strip()


def code(text: str) -> str:
    return f"```text\n{text}\n```"


# Commands


def commands() -> Iterator[str]:
    """Every command, with a table of its arguments and options."""
    group = typer.main.get_command(app)
    yield f"{group.help}\n\n{group.epilog}"
    for name, command in group.commands.items():
        arguments = [given for given in command.params if given.param_type_name == "argument"]
        options = [given for given in command.params if given.param_type_name == "option"]
        yield f"### `odb-stream {name}`"
        usage = [f"odb-stream {name}", *(argument.metavar or argument.name.upper() for argument in arguments)]
        yield code(" ".join([*usage, "[OPTIONS]"]))
        yield prose(command.help)
        annotations = inspect.signature(command.callback).parameters
        shown = [given for given in [*arguments, *options] if given.name != "help"]
        rows = [row(given, annotations[given.name].annotation) for given in shown]
        yield "\n".join(["| | default | |", "|---|---|---|", *rows])
        if command.epilog:
            words, _, example = command.epilog.partition(": ")
            yield f"{words}:\n\n{code(example)}"


def row(given: Any, annotation: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*given.opts, *given.secondary_opts])
    if given.param_type_name == "argument":
        names = f"`{given.metavar or given.name.upper()}`"
    elif value := ("" if given.is_flag else given.metavar or value_of(annotation)):
        names += f" {value}"
    if given.required:
        default = "required"
    elif given.secondary_opts:
        default = f"`{(given.opts if given.default else given.secondary_opts)[0]}`"
    else:
        default = "" if given.default is None or given.default is False else f"`{given.default}`"
    return f"| {names} | {default} | {(given.help or '').replace('|', '&#124;')} |"


def value_of(annotation: Any) -> str:
    """The value of an option: its choices, or its type."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in kinds)
    kind = kinds[0] if kinds else annotation
    return value_of(kind) if get_origin(kind) else kind.__name__.upper()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
