"""Tokenize: text to token ids and labels, with long samples cut by a named rule.

The encoder comes first: it uses ``tokenizers`` alone, gives exact character offsets, and keeps special tokens out of
chosen spans. The stage follows.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from tokenizers import AddedToken, Tokenizer

from odb_stream.config import require_choice, require_int
from odb_stream.errors import StageError
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, Sample
from odb_stream.stages.chat.rendering import Span
from odb_stream.stages.processor import any_of, backend_tokenizer, describe

Truncate = Literal["right", "left", "drop"]

# Stand-ins for the template's special tokens: code points that Unicode guarantees never to be characters.
_STAND_INS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class CannotEncode(ValueError):
    """This tokenizer cannot encode the text as asked; the error says why."""


class EncodedText(NamedTuple):
    """Token ids, and for each token the character span of the original text that it stands for.

    Tokens that share a character (byte-level pieces of one emoji) have the same span.
    """

    ids: list[int]
    offsets: list[Span]


class Encoder:
    """A tokenizer from its JSON; picklable, and built in each process only when it is first used.

    Spellings of special tokens that begin inside ``plain`` spans are encoded as ordinary text. For this, a second
    tokenizer treats all special tokens as text, and the special tokens outside the plain spans are replaced by
    stand-ins that it knows as added tokens. So the text is split exactly where the first tokenizer splits it, no piece
    of it is encoded separately, and the ids differ from the first tokenizer's only where a plain span spells a special
    token.
    """

    def __init__(self, serialized: str) -> None:
        self.serialized = serialized
        self._whole: Tokenizer | None = None
        self._bare: Tokenizer | None = None
        self._guarded: _Guarded | None = None

    def __reduce__(self) -> tuple[type["Encoder"], tuple[str]]:
        return Encoder, (self.serialized,)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return 1 + max(_load(self.serialized).get_vocab(with_added_tokens=True).values())

    def encode_document(self, text: str) -> list[int]:
        """The ids of a plain text with the special tokens that the tokenizer itself adds (bos and the like)."""
        if self._whole is None:
            self._whole = _load(self.serialized)
        return list(self._whole.encode(_encodable(text)).ids)

    def encode_chat(self, text: str, plain: Sequence[Span] = ()) -> EncodedText:
        """Ids and offsets of a rendered chat, nothing added; spans in ``plain`` get no special tokens."""
        if plain:
            if self._guarded is None:
                self._guarded = _Guarded(self.serialized)
            return self._guarded.encode(_encodable(text), plain)
        if self._bare is None:
            self._bare = _without_post_processor(self.serialized)
        encoding = self._bare.encode(_encodable(text), add_special_tokens=False)
        return EncodedText(encoding.ids, encoding.offsets)


class _Guarded:
    """The second tokenizer, to which special tokens are text and stand-ins are tokens."""

    def __init__(self, serialized: str) -> None:
        self._tokenizer = _without_post_processor(serialized)
        added = self._tokenizer.get_added_tokens_decoder()
        self._pattern = any_of(token.content for token in added.values())
        self._ids = {token.content: number for number, token in added.items() if token.special}
        self._stand_ins: dict[str, str] = {}
        by_manner: dict[tuple[bool, bool, bool], str] = {}
        for token in added.values():
            if token.special:
                # Added tokens that swallow white space alike can share a stand-in: there are only 32 of these.
                manner = (token.lstrip, token.rstrip, token.single_word)
                self._stand_ins[token.content] = by_manner.setdefault(manner, _STAND_INS[len(by_manner)])
        self._tokenizer.add_tokens(
            [
                AddedToken(letter, lstrip=lstrip, rstrip=rstrip, single_word=single, normalized=False, special=False)
                for (lstrip, rstrip, single), letter in by_manner.items()
            ]
        )
        self._stand_in_ids = {self._tokenizer.token_to_id(letter) for letter in by_manner.values()}
        self._letters = re.compile("[" + "".join(by_manner.values()) + "]") if by_manner else None
        self._tokenizer.encode_special_tokens = True
        self._unknown = getattr(self._tokenizer.model, "unk_token", None)

    def encode(self, text: str, plain: Sequence[Span]) -> EncodedText:
        if self._letters is not None and (found := self._letters.search(text)):
            raise CannotEncode(f"the text holds U+{ord(found[0]):04X}, which Unicode reserves: remove it")
        specials = self._specials_outside(text, plain)
        parts: list[str] = []
        ends: list[int] = []  # where each stand-in ends in the changed text
        shifts = [0]  # how much further ahead the original text is from there on
        done = length = 0
        for token in specials:
            parts += text[done : token.start()], self._stand_ins[token[0]]
            length += token.start() - done + 1
            done = token.end()
            ends.append(length)
            shifts.append(done - length)
        encoding = self._tokenizer.encode("".join(parts) + text[done:], add_special_tokens=False)
        ids = self._with_specials(encoding.ids, [self._ids[token[0]] for token in specials])
        self._require_plain(ids, specials, text, plain)
        offsets = [
            (start + shifts[bisect_right(ends, start)], end + shifts[bisect_right(ends, end)])
            for start, end in encoding.offsets
        ]
        return EncodedText(ids, offsets)

    def _specials_outside(self, text: str, plain: Sequence[Span]) -> list[re.Match[str]]:
        """The special tokens that the template wrote: those outside the plain spans, in order."""
        if self._pattern is None:
            return []
        starts = [0, *(end for _, end in plain)]
        ends = [*(start for start, _ in plain), len(text)]
        return [
            token
            for start, end in zip(starts, ends, strict=True)
            for token in self._pattern.finditer(text, start, end)
            if token[0] in self._ids
        ]

    def _with_specials(self, ids: list[int], specials: list[int]) -> list[int]:
        """The ids with each stand-in replaced by its special token."""
        places = [place for place, number in enumerate(ids) if number in self._stand_in_ids]
        if len(places) != len(specials):
            raise CannotEncode("the template writes a special token inside a word, where this tokenizer reads no token")
        for place, special in zip(places, specials, strict=True):
            ids[place] = special
        return ids

    def _require_plain(self, ids: list[int], specials: list[re.Match[str]], text: str, plain: Sequence[Span]) -> None:
        """Raise if a special token in a plain span is also a word of the vocabulary, and so a token after all."""
        for spelled, number in self._ids.items():
            if spelled == self._unknown or not any(text.find(spelled, start, end) >= 0 for start, end in plain):
                continue
            if ids.count(number) != sum(token[0] == spelled for token in specials):
                raise CannotEncode(
                    f"a content spells the special token {spelled!r}, which is also a word of this tokenizer, so it "
                    "cannot be encoded as plain text: change the spelling in the data"
                )


def _load(serialized: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(serialized)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_post_processor(serialized: str) -> Tokenizer:
    """The tokenizer without its last step, which would only trim white space from the offsets of a chat."""
    tokenizer = _load(serialized)
    tokenizer.post_processor = None
    return tokenizer


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CannotEncode(
            f"the text holds U+{ord(text[error.start]):04X}, half of a surrogate pair, which is not valid text"
        ) from error
    return text


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


def _checked(spans: Sequence[Span], field_name: str, length: int, sample: Sample) -> Sequence[Span]:
    """The spans. Raises StageError unless they lie in the text, in order and without overlap."""
    at = 0
    for start, end in spans:
        if not at <= start <= end <= length:
            raise StageError(
                f"Tokenize, {sample.where}: {field_name} holds ({start}, {end}), but spans must be in order, without "
                f"overlap and within the {length} characters of the text: correct the stage that wrote them"
            )
        at = end
    return spans
