"""Chats with images through chat templates: where images and answers lie, and what a text cannot do."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_samples import PLACE, sample, through
from vision_support import (
    CHATS,
    FAMILIES,
    FIXED,
    PARTS_ONLY,
    QWEN2_VL,
    SPECIALS,
    backend,
    image_file,
    image_parts_of,
    members,
    processor,
    turn,
)

from odb_stream.errors import StageError
from odb_stream.sample import IGNORED_LABEL
from odb_stream.stages import ChatTemplate, MeasureImages, Tokenize
from odb_stream.stages.chat.messages import plain_messages, texts_of

FILE = image_file()
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PAD = backend().token_to_id("<|image_pad|>")
STAGES = {family: ChatTemplate(processor(family)) for family in FAMILIES}
TOKENIZE = Tokenize(processor())


def rendered(messages, stage: ChatTemplate, **fields):
    start = sample(messages=messages, **members(*[FILE] * image_parts_of(messages)), **fields)
    return through([MeasureImages(), stage], start)


def answers(out) -> list[str]:
    return [out["text"][start:end] for start, end in out["spans"]]


PARTS = st.lists(
    st.sampled_from([None, None, "a", " ", "\n", "", "the cat", "<|im_end|>", "<|image_pad|>", IMAGE]), max_size=5
)
TURNS = st.lists(st.tuples(PARTS, st.sampled_from(["a cat", "", " a\n", "<|image_pad|>"])), min_size=1, max_size=4)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
@given(turns=TURNS, system=st.sampled_from([None, "", "be brief", "<|vision_start|>"]))
def test_random_chats(family, turns, system):
    """Text equal to transformers', answers exact, and in the ids as many placeholders as image parts."""
    chat = [] if system is None else [turn("system", system)]
    for parts, answer in turns:
        chat += turn("user", *parts), turn("assistant", answer)
    out = rendered(chat, STAGES[family])
    assert out["text"] == processor(family).apply_chat_template(chat, tokenize=False)
    assert answers(out) == [answer + "<|im_end|>" for _, answer in turns]
    ids = TOKENIZE(out)["input_ids"].tolist()
    assert ids.count(PAD) == image_parts_of(chat)
    assert backend().decode(ids, skip_special_tokens=False) == out["text"]
    turns_written = len(chat) + (system is None and family == "qwen2_vl")
    counts = {"<|im_start|>": turns_written, "<|im_end|>": turns_written, "<|vision_end|>": image_parts_of(chat)}
    assert {token: ids.count(backend().token_to_id(token)) for token in counts} == counts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spelled", SPECIALS)
def test_spellings_in_texts_never_stand_for_an_image(family, spelled):
    chat = [turn("user", spelled, None, f"x{spelled}y"), turn("assistant", spelled)]
    chat += {"role": "user", "content": spelled}, {"role": "assistant", "content": "a"}
    out = rendered(chat, STAGES[family])
    done = TOKENIZE(out)
    ids = done["input_ids"].tolist()
    assert ids.count(PAD) == 1
    assert ids.count(backend().token_to_id("<|vision_start|>")) == 1
    assert backend().decode(ids, skip_special_tokens=False) == out["text"]
    place = ids.index(PAD)
    assert backend().decode(ids[place - 1 : place + 2], skip_special_tokens=False) == IMAGE
    assert len(out["plain"]) == 4


def test_numbered_images():
    chat = CHATS["turns"]
    out = rendered(chat, ChatTemplate(processor(), template_kwargs={"add_vision_id": True}))
    assert out["text"].count("Picture 3: " + IMAGE) == 1
    assert out["plain"] == []
    assert answers(out) == ["a cat<|im_end|>", "a dog<|im_end|>", "a cat<|im_end|>", " yes \n<|im_end|>"]


@pytest.mark.parametrize("parts", [(None, "a"), ("a", None), ("a", None, "b"), (None,)])
def test_images_in_answers_belong_to_them(parts):
    """Qwen2-VL's template renders images of any role."""
    out = rendered(
        [turn("user", "draw", None), turn("assistant", *parts), turn("user", None), turn("assistant", "z")],
        ChatTemplate(processor()),
    )
    assert answers(out) == ["".join(IMAGE if part is None else part for part in parts) + "<|im_end|>", "z<|im_end|>"]


def test_images_from_tools():
    call = {"type": "function", "function": {"name": "draw", "arguments": {"what": "<|image_pad|>"}}}
    chat = [
        turn("user", "draw", None),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        turn("tool", "here", None),
        turn("tool", None),
        turn("assistant", "done"),
    ]
    tools = [{"name": "draw"}]
    out = rendered(chat, STAGES["qwen3_vl"], tools=tools)
    assert out["text"] == processor("qwen3_vl").apply_chat_template(chat, tools=tools, tokenize=False)
    assert len(answers(out)) == 2
    assert answers(out)[1] == "done<|im_end|>"
    assert TOKENIZE(out)["input_ids"].tolist().count(PAD) == 3


def test_generation_marks():
    marked = QWEN2_VL.replace(
        "{{- '<|im_start|>' + message.role + '\\n' -}}\n    {%- if message.content is string -%}",
        "{{- '<|im_start|>' + message.role + '\\n' -}}{%- if message.role == 'assistant' -%}"
        "{% generation %}{{- message.content + '<|im_end|>' -}}{% endgeneration %}{{- '\\n' -}}{%- continue -%}"
        "{%- endif -%}\n    {%- if message.content is string -%}",
    )
    assert "{% generation %}" in marked
    out = rendered(CHATS["between"] + CHATS["after"], ChatTemplate(processor(), template=marked))
    assert answers(out) == ["yes<|im_end|>", "a cat<|im_end|>"]
    assert out["text"].count(IMAGE) == 3


@pytest.mark.parametrize(
    ("family", "template", "chat", "where"),
    [
        ("qwen2_vl", FIXED, [turn("system", "x"), turn("user", None)], r"1 \(user\)"),
        ("qwen2_vl", FIXED, [turn("system", "x"), turn("user", None, "a")], r"1 \(user\)"),
        ("qwen2_vl", FIXED, [turn("system", "x"), turn("user", "a", None)], r"1 \(user\)"),
        ("qwen3_vl", None, [turn("system", "see", None), turn("user", None)], r"0 \(system\)"),  # not of this role
    ],
)
def test_a_template_that_renders_no_images(family, template, chat, where):
    with pytest.raises(StageError, match=rf"{PLACE}: .* image of turn {where}"):
        rendered([*chat, turn("assistant", "a")], ChatTemplate(processor(family, template)))


def test_a_template_that_takes_strings_only():
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    stage = ChatTemplate(processor(template=template))
    with pytest.raises(StageError, match="vision-language model"):
        rendered(CHATS["before"], stage)
    assert answers(rendered(CHATS["text only"], stage)) == ["a cat<|im_end|>"]


def test_a_template_that_takes_no_strings():
    stage = pickle.loads(pickle.dumps(ChatTemplate(processor(template=PARTS_ONLY))))
    chat = [turn("user", "hm", None, "<image>", None), {"role": "assistant", "content": "a cat"}, *CHATS["text only"]]
    out = rendered(chat, stage)
    texts = plain_messages([turn("assistant", "a cat"), *CHATS["text only"]])
    listed = [turn("user", None, None, "hm", "<image>"), *(turn(m["role"], "".join(texts_of(m))) for m in texts)]
    assert out["text"] == processor(template=PARTS_ONLY).apply_chat_template(listed, tokenize=False)
    assert out["text"].startswith("USER: <image>\n<image>\nhm <image> ASSISTANT: a cat<|im_end|>USER: ")
    assert answers(out) == ["a cat<|im_end|>"] * 2
    ids = TOKENIZE(out)["input_ids"].tolist()
    assert ids.count(backend().token_to_id("<image>")) == 2


def test_measured_images_must_belong_to_the_parts():
    stage = ChatTemplate(processor())
    for chat, fields, words in (
        ("before", {}, "1, but .* 0 measured images"),
        ("before", {"images": [FILE]}, "1, but .* not measured"),
        ("text only", {"images": [FILE]}, "0, but .* not measured"),
    ):
        with pytest.raises(StageError, match=f"parts is {words}"):
            stage(sample(messages=CHATS[chat], **fields))


def test_plain_messages_keep_strings_where_there_are_no_images():
    plain = plain_messages([turn("user", "a", "b"), turn("user", "a", ("0.png",))])
    assert plain[0] == {"role": "user", "content": "ab"}
    assert plain[1] == {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}


def test_the_cut_waits_for_the_true_length():
    stages = [MeasureImages(), ChatTemplate(processor()), Tokenize(processor(), max_length=9, truncate="left")]
    long = [turn("user", "the picture " * 20), turn("assistant", "a cat and a dog")]
    out = through(stages, sample(messages=long))
    assert (len(out["input_ids"]), "deferred_cut" in out) == (9, False)
    with_image = sample(messages=[turn("user", None), *long], **members(FILE))
    out = through(stages, with_image)
    assert len(out["input_ids"]) > 30
    assert "truncated" not in out
    assert out["deferred_cut"] == (9, "left")
    assert (out["labels"] != IGNORED_LABEL).any()
    stages[2] = Tokenize(processor())
    assert "deferred_cut" not in through(stages, with_image)
