"""What the stages read from a processor at construction, so that workers need neither it nor transformers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from odb_stream.errors import ConfigError


def describe(processor: Any) -> str:
    """The processor in a few words, for messages: its name or path if it has one, and its class."""
    name = getattr(processor, "name_or_path", "") or getattr(text_tokenizer(processor), "name_or_path", "")
    return f"{name!r} ({type(processor).__name__})" if name else type(processor).__name__


def text_tokenizer(processor: Any) -> Any:
    """The tokenizer of a processor, or the given object if it is a tokenizer itself."""
    return getattr(processor, "tokenizer", processor)


def backend_tokenizer(processor: Any) -> Tokenizer:
    """The ``tokenizers.Tokenizer`` of a processor, of a fast tokenizer, or given as such.

    Raises a ConfigError if there is none.
    """
    tokenizer = text_tokenizer(processor)
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(
            f"{describe(processor)} has no fast tokenizer: give a transformers tokenizer backed by the tokenizers "
            "library (AutoTokenizer loads one by default), a processor that holds one, or a tokenizers.Tokenizer"
        )
    return backend


def chat_template(processor: Any, template: str | None) -> str:
    """The text of the chat template to use: ``template``, else the processor's, else its tokenizer's.

    If the processor holds several by name, ``template`` may be such a name; without one, "default" is used. Raises a
    ConfigError that names the processor if it has no template to use.
    """
    own = getattr(processor, "chat_template", None) or getattr(text_tokenizer(processor), "chat_template", None)
    named: Mapping[str, str] = own if isinstance(own, Mapping) else {}
    if template is not None:
        if not isinstance(template, str) or not template.strip():
            raise ConfigError(f"template must be the text of a Jinja chat template, not {template!r}")
        return named.get(template, template)
    if isinstance(own, str):
        return own
    if "default" in named:
        return named["default"]
    if named:
        names = ", ".join(sorted(named))
        raise ConfigError(
            f"{describe(processor)} has several chat templates ({names}) and none is called 'default': choose one with "
            "ChatTemplate(processor, template=NAME)"
        )
    raise ConfigError(
        f"{describe(processor)} has no chat template: give one with ChatTemplate(processor, template=JINJA_TEXT), or "
        "leave ChatTemplate out if the samples are plain text"
    )


def named_special_tokens(processor: Any) -> dict[str, str]:
    """The special tokens that a template may use by name: ``bos_token``, ``eos_token`` and so on."""
    tokens = getattr(text_tokenizer(processor), "special_tokens_map", None) or {}
    return {name: str(token) for name, token in tokens.items() if isinstance(token, str | AddedToken)}


def any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the longest of these spellings at the leftmost place; None if there are no spellings."""
    # The first alternative that matches wins, so the longest comes first.
    ordered = sorted({spelling for spelling in spellings if spelling}, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
