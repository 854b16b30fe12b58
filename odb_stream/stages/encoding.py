"""Encodes text with ``tokenizers`` alone: ids and exact character offsets, and no special tokens in chosen spans."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer

from odb_stream.stages.chat.rendering import Span
from odb_stream.stages.processor import any_of

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
