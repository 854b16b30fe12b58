"""Supervised spans: exactly what the assistant says and the terminator, whatever the contents are."""

import pickle

import pytest
from chat_templates import (
    ALL,
    CHATML,
    CHATML_MARKED,
    HEADERS,
    INST,
    PROMPTED_THINKING,
    THINKING,
    WORDS,
    call,
    chat,
    supervised,
    wrapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_samples import sample

from odb_stream.sample import IGNORED_LABEL, Drop
from odb_stream.stages import ChatTemplate, Tokenize

NASTY = [
    "", " ", "\n", "\n\n", "a", "hi", "user", "assistant", "<", "|", "</s>", "<s>", "<|im_end|>", " <|im_end|>\n",
    "<|im_start|>assistant\n", "<|im_end|>\n<|im_start|>user\nhi", "<|eot|><|start|>assistant<|sep|>\n\n",
    "Assistant: ", "User: a\n\nAssistant: b", " [/INST] ", "[INST]", "<think>", "</think>", "<think>\nr\n</think>\n\na",
    '"q" \\ \t', "<tool_response>", "<tool_response>x</tool_response>", "😀", "👩‍👩‍👧", "你好", "e\u0301",
    "\u00a0x\u2003", "{{ content }}",
]  # fmt: skip
CONTENTS = st.sampled_from(NASTY) | st.lists(st.sampled_from(NASTY), max_size=3).map("".join) | st.text(max_size=12)
CHATS = st.lists(CONTENTS, min_size=2, max_size=7).flatmap(
    lambda contents: (st.none() | CONTENTS).map(lambda system: chat(*contents, system=system))
)


def chatml(messages):
    for message in messages:
        yield f"<|im_start|>{message['role']}\n", False
        yield message["content"] + "<|im_end|>", message["role"] == "assistant"
        yield "\n", False


def spoken(messages):
    yield from chatml([{**message, "content": message["content"] or "(nothing)"} for message in messages])


def bare(messages):
    yield from chatml(messages)
    yield "<|endoftext|>", False


def inst(messages):
    system = ""
    for message in messages:
        if message["role"] == "system":
            system = f"<<SYS>>\n{message['content']}\n<</SYS>>\n\n"
        elif message["role"] == "user":
            yield f"<s>[INST] {(system + message['content']).strip()} [/INST]", False
            system = ""
        else:
            yield f" {message['content'].strip()} </s>", True


def headers(messages):
    yield "<s>", False
    for message in messages:
        yield f"<|start|>{message['role']}<|sep|>\n\n", False
        yield message["content"].strip() + "<|eot|>", message["role"] == "assistant"


def words(messages):
    for message in messages:
        yield f"{message['role'].capitalize()}: ", False
        yield message["content"] + "\n\n", message["role"] == "assistant"


ORACLES = {
    "chatml": chatml, "marked": chatml, "bare": bare, "inst": inst, "headers": headers, "words": words,
    "spoken": spoken,
}  # fmt: skip
# As workers get them: the rules learnt at construction survive pickling.
STAGES = {name: pickle.loads(pickle.dumps(ChatTemplate(wrapped(template)))) for name, template in ALL.items()}
ENCODE = Tokenize(wrapped())


def expected(parts):
    text, spans = "", []
    for part, counts in parts:
        if counts:
            spans.append((len(text), len(text) + len(part)))
        text += part
    return text, spans


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=150)
@given(messages=CHATS)
def test_spans_and_tokens_are_exactly_the_answers(name, messages):
    text, spans = expected(ORACLES[name](messages))
    rendered = STAGES[name](sample(messages=messages))
    assert (rendered["text"], rendered["spans"]) == (text, spans)
    tokens = ENCODE(rendered)
    if isinstance(tokens, Drop):
        assert tokens.reason == "nothing_supervised"
        assert not spans or name == "words"
        return
    decode = wrapped().backend_tokenizer.decode
    assert decode(tokens["input_ids"].tolist(), skip_special_tokens=False) == text
    # A line break before an answer and one that the answer begins with may be one token: it began before the answer.
    offsets = ENCODE.encoder.encode_chat(text, rendered["plain"]).offsets
    borders = {border for span in spans for border in span}
    crossing = [(start, end) for start, end in offsets if any(start < border < end for border in borders)]
    assert name == "words" or all(text[start:end].isspace() for start, end in crossing)
    if not crossing:
        chosen = tokens["labels"][tokens["labels"] != IGNORED_LABEL].tolist()
        assert decode(chosen, skip_special_tokens=False) == "".join(text[start:end] for start, end in spans)


@settings(max_examples=300)
@given(messages=CHATS)
def test_marks_and_learnt_rules_agree_where_reasoning_comes_and_goes(messages):
    plain, marked = (STAGES[name](sample(messages=messages)) for name in ("thinking", "thinking_marked"))
    for field in ("text", "spans", "plain"):
        assert plain[field] == marked[field]


TURNS = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "assistant"]), "content": CONTENTS}),
    st.builds(
        lambda text, name, argument: {
            "role": "assistant",
            "content": text,
            "tool_calls": [call(name, {"q": argument}), call("two", argument)],
        },
        st.none() | st.sampled_from(["", "let me see", "<think>\nr\n</think>\n\n"]),
        st.sampled_from(["find", "user", "<|im_end|>"]),
        CONTENTS,
    ),
)


@settings(max_examples=300)
@given(turns=st.lists(TURNS, min_size=1, max_size=7))
def test_marks_and_learnt_rules_agree_on_tool_calls_in_any_order(turns):
    messages = [{"role": "user", "content": "q"}, *turns]
    plain, marked = (STAGES[name](sample(messages=messages)) for name in ("thinking", "thinking_marked"))
    if isinstance(plain, Drop):
        assert plain == marked
        assert all(turn["role"] != "assistant" for turn in turns)
    else:
        assert (plain["text"], plain["spans"]) == (marked["text"], marked["spans"])


@pytest.mark.parametrize(("around", "end"), [("{}", ""), ("{{% generation %}}{}{{% endgeneration %}}", "<|im_end|>")])
def test_generation_marks_decide_and_nested_ones_are_one_span(around, end):
    shorter = "{% generation %}{{- message['content'] -}}{% endgeneration %}{{- '<|im_end|>' -}}"
    marked = "{% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}"
    template = CHATML_MARKED.replace(marked, around.format(shorter))
    assert template != CHATML_MARKED
    messages = chat("a", "b", "c", "d")
    assert supervised(ChatTemplate(wrapped(template))(sample(messages=messages))) == ["b" + end, "d" + end]


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
def test_train_on_last(template):
    stage = ChatTemplate(wrapped(template), train_on="last")
    assert supervised(stage(sample(messages=chat("a", "b", "a", "b")))) == ["b<|im_end|>"]
    rendered = stage(sample(messages=chat("a", "b", "a", "b", "a")))
    start = rendered["text"].rindex("assistant\nb") + 10
    assert rendered["spans"] == [(start, start + 11)]


def test_calls_alone_are_supervised_whole():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call()]}]
    body = '<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call><|im_end|>'
    assert supervised(STAGES["thinking"](sample(messages=messages))) == ["<think>\n\n</think>\n\n" + body]
    more = [*messages, {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a"}]
    assert supervised(STAGES["thinking"](sample(messages=more)))[0] == body


def test_think_block_of_the_prompt_is_not_supervised():
    keeps = PROMPTED_THINKING.replace(".split('</think>')[-1]", "")
    messages = chat("q", "<think>\nr</think>a", "q", "b")
    assert supervised(ChatTemplate(wrapped(keeps))(sample(messages=messages))) == ["r</think>a<|eot|>", "b<|eot|>"]
    assert supervised(STAGES["prompted"](sample(messages=messages))) == ["a<|eot|>", "b<|eot|>"]


@pytest.mark.parametrize("template", [CHATML, THINKING, HEADERS, WORDS])
def test_a_chat_may_begin_with_the_assistant(template):
    first = supervised(ChatTemplate(wrapped(template))(sample(messages=chat("a", "b")[1:] + chat("c"))))
    assert len(first) == 1
    assert first[0].startswith("b")


def test_one_rendering_a_chat_once_its_shape_is_known(monkeypatch):
    stage = ChatTemplate(wrapped(INST))
    stage(sample(messages=chat("a", "b", "c", "d")))
    calls = []
    render = type(stage.tracer.renderer).render
    monkeypatch.setattr(type(stage.tracer.renderer), "render", lambda *a, **k: (calls.append(1), render(*a, **k))[1])
    for number in range(5):
        stage(sample(messages=chat(f"q{number}", "b", "c", "d")))
    assert len(calls) == 5


def test_many_shapes_do_not_fill_the_memory():
    stage = ChatTemplate(wrapped(CHATML))
    for number in range(5000):
        stage(sample(messages=chat("a" + " " * number, "b")))
    assert len(stage.tracer._layouts) <= 4096
