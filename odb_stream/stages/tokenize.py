"""Tokenize: text to token ids and labels, with long samples cut by a named rule."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from operator import itemgetter
from typing import Any, Literal, get_args

import numpy as np

from odb_stream.config import require_choice, require_int
from odb_stream.errors import StageError
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, Sample
from odb_stream.stages.chat.rendering import Span
from odb_stream.stages.encoding import CannotEncode, Encoder
from odb_stream.stages.processor import backend_tokenizer, describe

Truncate = Literal["right", "left", "drop"]


@dataclass(frozen=True)
class Tokenize:
    """Encode a sample's text and label the supervised tokens.

    Reads ``text`` and, from ChatTemplate, ``spans`` and ``plain``; adds ``input_ids`` and ``labels``, both int32 of
    shape (length,). Labels are not shifted: the id where the token is supervised, ``IGNORED_LABEL`` elsewhere.

    With ``spans`` the text is a rendered chat: nothing is added to it, and the ids are those of
    ``tokenizer(text, add_special_tokens=False)``. A token is supervised if it begins inside a span: a token that begins
    before the span and reaches into it is not, a token that begins in it and reaches beyond its end is (it carries the
    end of the answer). Spellings of special tokens inside ``plain`` spans become ordinary tokens; the ids of all other
    text do not change.

    Without ``spans`` the text is a document: every token is supervised, and the tokenizer adds its special tokens as
    in ``tokenizer(text)``.

    Args:
        processor: a fast tokenizer of transformers, a processor that holds one, or a ``tokenizers.Tokenizer``. It is
            read at construction and not kept: the stage is sent to worker processes without it.
        max_length: the most tokens a sample may have; None sets no limit.
        truncate: what happens to a longer sample. "right" (the default) keeps the first ``max_length`` tokens, "left"
            the last; the number of tokens cut is recorded in the sample as ``truncated``. "drop" drops the sample. A
            sample with images is cut by ExpandVisualTokens, once its true length is known.

    Returns ``Drop("empty")`` for a text without tokens, ``Drop("too_long")`` by the rule "drop", and
    ``Drop("nothing_supervised")`` if no label is left after the cut and the causal shift (the first token is never
    predicted). Raises a ConfigError for bad settings and a StageError for a sample without a usable text.
    """

    processor: InitVar[Any]
    max_length: int | None = field(default=None, kw_only=True)
    truncate: Truncate = field(default="right", kw_only=True)
    name: str = field(init=False)
    encoder: Encoder = field(init=False, repr=False, compare=False)

    def __post_init__(self, processor: Any) -> None:
        if self.max_length is not None:
            require_int("max_length", self.max_length, minimum=1)
        require_choice("truncate", self.truncate, get_args(Truncate))
        object.__setattr__(self, "name", describe(processor))
        object.__setattr__(self, "encoder", Encoder(backend_tokenizer(processor).to_str()))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that this stage can give: the rows that an embedding needs."""
        return self.encoder.vocab_size

    def __call__(self, sample: Sample) -> Sample | Drop:
        """Encode one sample; see the class."""
        text = sample.get("text")
        if not isinstance(text, str):
            what = "no 'text'" if text is None else f"a 'text' of type {type(text).__name__}"
            raise StageError(
                f"Tokenize, {sample.where}: the sample has {what}: put ChatTemplate before Tokenize for chats, or give "
                "plain text as KEY.txt"
            )
        if not text:
            return Drop("empty", f"{sample.where}: the text is empty")
        try:
            ids, labels = self._encode(text, sample)
        except CannotEncode as error:
            raise StageError(f"Tokenize, {sample.where}: {error}") from error
        length = len(ids)
        if length == 0:
            return Drop("empty", f"{sample.where}: the text has no tokens")
        fields: dict[str, Any] = {}
        # Each image still counts as one token here, so a cut now would be by the wrong length.
        if sample.get("images"):
            if self.max_length is not None:
                fields["deferred_cut"] = (self.max_length, self.truncate)
        elif self.max_length is not None and length > self.max_length:
            if self.truncate == "drop":
                return Drop("too_long", f"{sample.where}: {length} tokens, max_length is {self.max_length}")
            kept = kept_tokens(length, self.max_length, self.truncate)
            ids, labels = ids[kept], labels[kept]
            fields["truncated"] = length - self.max_length
        if not (labels[1:] != IGNORED_LABEL).any():
            cut = f" of {length}" if "truncated" in fields else ""
            return Drop("nothing_supervised", f"{sample.where}: no supervised token among the {len(ids)}{cut} tokens")
        return sample.with_fields({**sample, "input_ids": ids, "labels": labels, **fields})

    def _encode(self, text: str, sample: Sample) -> tuple[IntArray, IntArray]:
        if "spans" not in sample:
            ids = np.array(self.encoder.encode_document(text), dtype=np.int32)
            return ids, ids.copy()
        spans = _checked(sample["spans"], "spans", len(text), sample)
        encoded = self.encoder.encode_chat(text, _checked(sample.get("plain", ()), "plain", len(text), sample))
        ids = np.array(encoded.ids, dtype=np.int32)
        return ids, supervised_labels(ids, encoded.offsets, spans)


def supervised_labels(ids: IntArray, offsets: Sequence[Span], spans: Sequence[Span]) -> IntArray:
    """Labels of shape (length,): the id of each token that begins in a span, ``IGNORED_LABEL`` elsewhere."""
    labels = np.full(len(ids), IGNORED_LABEL, dtype=np.int32)
    begins = itemgetter(0)
    for start, end in spans:
        first = bisect_left(offsets, start, key=begins)
        last = bisect_left(offsets, end, lo=first, key=begins)
        labels[first:last] = ids[first:last]
    return labels


def kept_tokens(length: int, max_length: int, truncate: Truncate) -> slice:
    """Which tokens of a too long sample to keep, by the rules "right" and "left"."""
    return slice(0, max_length) if truncate == "right" else slice(length - max_length, length)


def _checked(spans: Any, field_name: str, length: int, sample: Sample) -> Sequence[Span]:
    """The spans. Raises StageError unless they lie in the text, in order and without overlap."""
    at = 0
    for start, end in spans:
        if not at <= start <= end <= length:
            raise StageError(
                f"Tokenize, {sample.where}: {field_name} holds ({start}, {end}), but spans must be in order, without "
                f"overlap and within the {length} characters of the text: correct the stage that wrote them"
            )
        at = end
    result: Sequence[Span] = spans
    return result
