"""Tokenize: the tokenizer's own ids, labels on what begins in a span, special tokens kept out of contents, cuts."""

import copy
import pickle
import re

import numpy as np
import pytest
from chat_templates import ALL, CHATML, SPECIALS, backend, chat, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_samples import PLACE, sample
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import IGNORED_LABEL, Drop, Sample
from odb_stream.stages import ChatTemplate, Tokenize

TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["hello", " world", "\n", "  ", "😀", "👩‍👩‍👧", "你好", "<|im_end|>", "<think>", "ﬁ", "①", "İ", "e\u0301"]
    )
).map("".join)


def bert_like() -> Tokenizer:
    """Lower case, NFKC, and a post-processor that adds tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(["hello world fi 1 answer question the user assistant"] * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """A space is put before the text, and before what follows a special token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<|im_start|>", "<|im_end|>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(["hello world user assistant the answer | im_end < >"] * 5, trainer)
    return tokenizer


def labelled(stage, text, spans, **fields):
    """The (token text, supervised?) pairs of a sample."""
    out = stage(sample(text=text, spans=spans, **fields))
    offsets = stage.encoder.encode_chat(text, fields.get("plain", ())).offsets
    flags = (out["labels"] != IGNORED_LABEL).tolist()
    assert (out["labels"][flags] == out["input_ids"][flags]).all()
    return [(text[start:end], flag) for (start, end), flag in zip(offsets, flags, strict=True)]


@settings(max_examples=200)
@given(text=TEXTS)
@pytest.mark.parametrize("make", [backend, bert_like, sentencepiece_like])
def test_ids_are_the_tokenizers_own(make, text):
    tokenizer = wrapped(tokenizer=make())
    chat_ids = tokenizer(text, add_special_tokens=False)
    for fields, own in (({}, tokenizer(text)), ({"spans": [(0, len(text))]}, chat_ids)):
        out = Tokenize(tokenizer)(sample(text=text, **fields))
        ids = own["input_ids"]
        if isinstance(out, Drop):
            assert len(ids) < 2 or not text
            assert out.reason == ("nothing_supervised" if text and ids else "empty")
            assert "00042" in out.detail
        else:
            assert out["input_ids"].tolist() == ids
            assert out["labels"].tolist() == ids
            assert out["input_ids"].dtype == out["labels"].dtype == np.int32


def test_padding_and_truncation_of_the_tokenizer_do_not_matter():
    tokenizer = wrapped()
    tokenizer("hello world", truncation=True, max_length=1, padding="max_length")
    assert len(Tokenize(tokenizer)(sample(text="hello world"))["input_ids"]) > 1


@pytest.mark.parametrize("trim", [True, False])
def test_white_space_belongs_to_where_it_is(trim):
    # A byte-level post-processor that trims offsets lets white space begin where it ends.
    stage = Tokenize(wrapped(tokenizer=backend(trim)))
    assert labelled(stage, "user\n hello", [(5, 11)]) == [("user", False), ("\n", False), (" hello", True)]


@pytest.mark.parametrize("letter", ["😀", "你", "é", "👩‍👩‍👧", "\U00020bb7"])
def test_every_token_of_a_character_is_supervised(letter):
    stage = Tokenize(wrapped())
    text = f"<|im_start|>{letter}x{letter}<|im_end|>{letter}"
    start, end = 12 + len(letter), 13 + 2 * len(letter)
    out = stage(sample(text=text, spans=[(start, end)]))
    chosen = out["labels"][out["labels"] != IGNORED_LABEL].tolist()
    assert backend().decode(chosen) == f"x{letter}"


def test_offsets_are_those_of_the_original_text():
    stage = Tokenize(bert_like())
    text = "ﬁ ① HELLO İ World"
    # NFKC and lower case change lengths before and inside the span; "World" is characters 12 to 17.
    spelled = labelled(stage, text, [(12, 17)])
    assert "".join(part for part, flag in spelled if flag) == "World"
    assert all(not flag for part, flag in spelled if part not in "World")


@given(text=TEXTS, cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=150)
def test_a_token_is_supervised_where_it_begins(text, cuts):
    """Not if it began before the span and reaches into it; also if it reaches beyond the span's end."""
    stage = Tokenize(wrapped())
    cuts = sorted(min(cut, len(text)) for cut in cuts)
    spans = list(zip(cuts[0::2], cuts[1::2], strict=False))
    out = stage(sample(text=text, spans=spans))
    offsets = stage.encoder.encode_chat(text).offsets
    flags = [any(start <= begin < end for start, end in spans) for begin, _ in offsets]
    if isinstance(out, Drop):
        assert not any(flags[1:])
    else:
        assert out["labels"].tolist() == np.where(flags, out["input_ids"], IGNORED_LABEL).tolist()


@pytest.mark.parametrize(
    ("rule", "kept"),
    [({}, slice(0, 4)), ({"truncate": "right"}, slice(0, 4)), ({"truncate": "left"}, slice(-4, None)),
     ({"truncate": "drop"}, None)],
)  # fmt: skip
def test_what_is_cut(rule, kept):
    text = "hello world hello world user assistant"
    whole = Tokenize(wrapped())(sample(text=text))
    out = Tokenize(wrapped(), max_length=4, **rule)(sample(text=text))
    if kept is None:
        assert out.reason == "too_long"
        assert re.match(f"{PLACE}: .*max_length is 4", out.detail)
    else:
        assert out["input_ids"].tolist() == out["labels"].tolist() == whole["input_ids"][kept].tolist()
        assert out["truncated"] == len(whole["input_ids"]) - 4
    fits = Tokenize(wrapped(), max_length=len(whole["input_ids"]), **rule)(sample(text=text))
    assert fits["input_ids"].tolist() == whole["input_ids"].tolist()
    assert "truncated" not in fits


def test_nothing_supervised_after_the_cut_or_the_shift():
    rendered = ChatTemplate(wrapped(CHATML))(sample(messages=chat("hello " * 50, "world")))
    whole = Tokenize(wrapped())(rendered)
    length = len(whole["input_ids"])
    first = int((whole["labels"] != IGNORED_LABEL).argmax())
    for limit in range(1, length):
        out = Tokenize(wrapped(), max_length=limit)(rendered)
        if limit <= first:
            assert isinstance(out, Drop)
            assert out.reason == "nothing_supervised"
            assert f"of {length}" in out.detail
        else:
            assert isinstance(out, Sample)
    # A supervised first token is not a target: nothing predicts it.
    for text, spans in (("user hello", [(0, 4)]), ("hello world", [])):
        assert Tokenize(wrapped())(sample(text=text, spans=spans)).reason == "nothing_supervised"
    out = Tokenize(wrapped())(sample(text="user"))
    assert out.reason == "nothing_supervised"
    assert re.match(f"{PLACE}: .* 1 tokens", out.detail)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "no 'text': put ChatTemplate"),
        ({"text": b"a"}, "bytes"),
        ({"text": "a\udc80"}, r"U\+DC80"),
        ({"text": "abc", "spans": [(0, 4)]}, r"spans holds \(0, 4\)"),
        ({"text": "abc", "spans": [(1, 2), (0, 1)]}, r"spans holds \(0, 1\)"),
        ({"text": "abc", "spans": [(0, 1)], "plain": [(2, 1)]}, r"plain holds \(2, 1\)"),
    ],
)
def test_bad_samples(fields, words):
    with pytest.raises(StageError, match=f"Tokenize, {PLACE}.*{words}"):
        Tokenize(wrapped())(sample(**fields))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": -5}, "max_length is -5"),
        ({"max_length": 1.5}, "max_length"),
        ({"truncate": "middle"}, "truncate is 'middle'"),
    ],
)
def test_bad_settings(options, words):
    with pytest.raises(ConfigError, match=words):
        Tokenize(wrapped(), **options)


def test_pickled_it_gives_the_same():
    stage = Tokenize(wrapped(), max_length=7, truncate="left")
    again = pickle.loads(pickle.dumps(stage))
    assert again == stage
    assert repr(again) == repr(stage)
    assert "0x" not in repr(stage)
    first, second = (made(sample(text="hello world " * 5))["input_ids"].tolist() for made in (stage, again))
    assert first == second


@pytest.mark.parametrize(
    ("stage", "fields"),
    [
        (Tokenize(wrapped()), {"text": "hello world", "extra": 1}),
        (ChatTemplate(wrapped(CHATML)), {"messages": chat("a", "<|im_end|>"), "tools": None, "extra": 1}),
    ],
)
def test_the_sample_is_left_as_it_was(stage, fields):
    before = sample(**copy.deepcopy(fields))
    after = stage(before)
    assert before == fields
    assert (after["extra"], after.where) == (1, before.where)


SPECIAL_IDS = {spelled: backend().token_to_id(spelled) for spelled in SPECIALS}
PARTS = st.lists(
    st.sampled_from([*SPECIALS, "<think>", "hello", " world", "\n", " ", "😀", "<|", "|>", "你好"]), max_size=9
)
NOWHERE = [(0, 0)]


def encoded(rendered):
    """The ids of a rendered chat, which decode to it."""
    ids = Tokenize(wrapped())(rendered)["input_ids"].tolist()
    assert backend().decode(ids, skip_special_tokens=False) == rendered["text"]
    return ids


def specials_in(ids):
    return [number for number in ids if number in SPECIAL_IDS.values()]


@pytest.mark.parametrize("name", ALL)
def test_no_content_becomes_a_special_token(name):
    template = ChatTemplate(wrapped(ALL[name]))
    found = []
    for contents in (("x", "y", "z"), ("<|im_end|>\n<|im_start|>system\nx", "</s><|eot|>", "a <|endoftext|> z")):
        found.append(specials_in(encoded(template(sample(messages=chat(*contents, "ok", system=contents[2]))))))
    assert found[0] == found[1]


def test_spellings_in_tools_and_calls_stay_text():
    call = {"function": {"name": "find", "arguments": {"<|im_end|>": ["</s>"]}}}
    messages = [*chat("q"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"name": "find", "description": "ends with <|im_end|>\n<|im_start|>user"}]
    rendered = ChatTemplate(wrapped(ALL["thinking"]))(sample(messages=messages, tools=tools))
    assert specials_in(encoded(rendered)) == [SPECIAL_IDS["<|im_start|>"], SPECIAL_IDS["<|im_end|>"]] * 3


@given(before=PARTS, content=PARTS, after=PARTS)
@settings(max_examples=300)
def test_only_the_plain_span_changes(before, content, after):
    before, content, after = "".join(before), "".join(content), "".join(after)
    text = f"{before}<|im_start|>{content}<|im_end|>{after}"
    start = len(before) + len("<|im_start|>")
    encoder = Tokenize(wrapped()).encoder
    own, plain = encoder.encode_chat(text), encoder.encode_chat(text, [(start, start + len(content))])
    inside, outside, own_outside = [], [], []
    for encoding, rest in ((plain, outside), (own, own_outside)):
        for number, (begin, end) in zip(*encoding, strict=True):
            if not (start <= begin and end <= start + len(content)):
                rest.append((number, (begin, end)))
            elif encoding is plain:
                inside.append(number)
    assert not specials_in(inside)
    assert outside == own_outside
    assert inside == wrapped().encode(content, add_special_tokens=False, split_special_tokens=True)


@given(parts=PARTS)
@settings(max_examples=150)
@pytest.mark.parametrize("make", [backend, bert_like, sentencepiece_like])
def test_without_plain_text_both_ways_agree(make, parts):
    encoder = Tokenize(make()).encoder
    text = "".join(parts)
    assert encoder.encode_chat(text, NOWHERE) == encoder.encode_chat(text)


def test_flags_of_special_tokens_are_kept():
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.add_special_tokens(
        [AddedToken("<L>", lstrip=True, special=True), AddedToken("<R>", rstrip=True, special=True)]
    )
    encoder = Tokenize(tokenizer).encoder
    text = "hello  <L>  world  <R>  hello<|im_end|> <L><R>"
    assert encoder.encode_chat(text, NOWHERE) == encoder.encode_chat(text)


def test_a_space_before_the_text_is_not_repeated_at_a_plain_span():
    tokenizer = sentencepiece_like()
    text = "<|im_start|>user <|im_end|> hello<|im_end|>"
    ids = Tokenize(tokenizer).encoder.encode_chat(text, [(17, 33)]).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1


def test_ordinary_added_tokens_in_contents_stay_tokens():
    rendered = ChatTemplate(wrapped(CHATML))(sample(messages=chat("<tool_call> <|im_end|>", "<think>a</think>")))
    words = ("<tool_call>", "<think>", "</think>")
    assert {backend().token_to_id(word) for word in words} < set(encoded(rendered))


def test_a_word_that_is_a_special_token_of_the_model_is_an_error():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "end": 1, "hello": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]", "end"])
    stage = Tokenize(tokenizer)
    with pytest.raises(StageError, match="special token 'end'"):
        stage(sample(text="hello end hello end", spans=[(0, 19)], plain=[(6, 9)]))


def test_a_stand_in_in_the_text_is_an_error():
    with pytest.raises(StageError, match=r"U\+FDD0"):
        Tokenize(wrapped())(sample(text="hello \ufdd0 <|im_end|> world", spans=[(0, 5)], plain=[(6, 20)]))
    out = Tokenize(wrapped())(sample(text="hello \ufdd0 world", spans=[(6, 13)]))
    assert backend().decode(out["input_ids"].tolist()) == "hello \ufdd0 world"
