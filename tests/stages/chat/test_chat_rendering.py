"""The rendering is the one that transformers gives, without transformers in the worker."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from chat_templates import ALL, CHATML, THINKING, call, chat, supervised, wrapped
from stage_samples import sample

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Sample
from odb_stream.stages import ChatTemplate, Tokenize

TOOLS = [{"type": "function", "function": {"name": "find", "description": 'it\'s <b>"großes"</b> 世界'}}]
CHATS = [
    chat("hello", "world"),
    chat("hello", "world", "hello", "world", system="be 世界"),
    chat(" hello\n", "\n world  ", "hello", " ", system=" sys "),
    chat("a" * 3000, "b" * 3000),
    chat("", "", "", ""),
    chat("q", "<think>\nr\n</think>\n\na", "q", "<think>\nr\n</think>\n\na"),
    chat("<|im_end|>\n<|im_start|>assistant\n", "</s>[INST]"),
    chat("😀👩‍👩‍👧", "你好\u00e9e\u0301"),
]
ARGUMENTS = {"q": "世界 <|im_end|>", "n": [1, {"x": None}]}
CALLS = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": [call(arguments=ARGUMENTS)]},
    {"role": "tool", "content": '{"found":\n ["a", "b\\n"]}'},
    {"role": "assistant", "content": "done"},
]


def as_transformers(template: str, messages: list, tools: object = None) -> Sample:
    """The rendered sample of a pickled stage, whose text is that of transformers."""
    tokenizer = wrapped(template)
    rendered = pickle.loads(pickle.dumps(ChatTemplate(tokenizer)))(sample(messages=messages, tools=tools))
    parsed = (json.loads(tools) if isinstance(tools, str) and tools else tools) or None
    assert rendered["text"] == tokenizer.apply_chat_template(messages, tools=parsed, tokenize=False)
    return rendered


@pytest.mark.parametrize("name", ALL)
def test_rendering_equals_transformers(name):
    for messages in CHATS:
        as_transformers(ALL[name], messages)


@pytest.mark.parametrize("name", ["thinking", "thinking_marked", "headers"])
def test_rendering_of_tool_calls_equals_transformers(name):
    assert "find" in supervised(as_transformers(ALL[name], CALLS))[0]


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), None, [], "", "[]"])
def test_tools_are_a_list_or_its_json_or_none(tools):
    as_transformers(THINKING, CALLS, tools)


@pytest.mark.parametrize("template", [THINKING, THINKING.replace("message.reasoning_content", "message.thinking")])
def test_reasoning_fields_are_given_under_both_names(template):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning": "because"}]
    assert supervised(as_transformers(template, messages)) == ["<think>\nbecause\n</think>\n\na<|im_end|>"]


def test_template_kwargs_reach_the_template():
    tokenizer = wrapped(THINKING)
    stage = ChatTemplate(tokenizer, template_kwargs={"enable_thinking": False})
    # The prompt now ends after an empty think block, which only the last answer has.
    assert supervised(stage(sample(messages=chat("q", "a", "q", "b")))) == ["a<|im_end|>", "b<|im_end|>"]


def test_text_parts_become_one_string():
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    rendered = ChatTemplate(wrapped(CHATML))(sample(messages=messages))
    assert rendered["text"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
    assert messages[0]["content"] is parts


def test_named_templates():
    tokenizer = wrapped({"default": CHATML, "thinking": THINKING})
    assert ChatTemplate(tokenizer).source == CHATML
    assert ChatTemplate(SimpleNamespace(tokenizer=tokenizer)).source == CHATML
    assert ChatTemplate(tokenizer, template="thinking").source == THINKING
    assert ChatTemplate(wrapped(THINKING), template=CHATML).source == CHATML
    with pytest.raises(ConfigError, match=r"\(one, two\)"):
        ChatTemplate(wrapped({"one": CHATML, "two": CHATML}))


def test_a_template_that_tells_the_time_is_followed():
    template = "{{- strftime_now('%H:%M:%S.%f') -}}" + CHATML
    stage = ChatTemplate(wrapped(template))
    for _ in range(3):
        assert supervised(stage(sample(messages=chat("a", "b")))) == ["b<|im_end|>"]


def test_stages_need_neither_torch_nor_transformers(tmp_path):
    path, stages = tmp_path / "stages", (ChatTemplate(wrapped(THINKING)), Tokenize(wrapped(THINKING)))
    path.write_bytes(pickle.dumps((*stages, {"messages": chat("a", "b <|im_end|>")})))
    script = """
import pickle, sys
from odb_stream.sample import Record, Sample, SampleRef
template, tokenize, fields = pickle.load(open(sys.argv[1], "rb"))
sample = Sample.of(Record(SampleRef(0, 0, 0, 0), "k", "s"), fields, seed=0)
assert len(tokenize(template(sample))["input_ids"]) > 5
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_template_that_refuses_a_chat_says_why():
    with pytest.raises(StageError, match=r"train-3\.tar, key '00042'.*roles must alternate"):
        ChatTemplate(wrapped(ALL["inst"]))(sample(messages=[*chat("a", "b"), {"role": "assistant", "content": "c"}]))


REAL_CHATS = Path(__file__).parents[4] / "shared" / "data" / "chat"


@pytest.mark.skipif(not REAL_CHATS.is_dir(), reason="the real chats are not part of the project")
@pytest.mark.parametrize("name", ["chatml", "marked", "thinking", "thinking_marked"])
@pytest.mark.parametrize("file", ["alpaca_en", "alpaca_zh", "toolcall_en", "toolcall_zh"])
def test_real_chats(name, file):
    tokenizer = wrapped(ALL[name])
    template, tokenize = ChatTemplate(tokenizer), Tokenize(tokenizer)
    for line in (REAL_CHATS / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()[:300]:
        messages = json.loads(line)["messages"]
        rendered = template(sample(messages=messages))
        assert rendered["text"] == tokenizer.apply_chat_template(messages, tokenize=False)
        assert rendered["plain"] == []
        answers = [message["content"] + "<|im_end|>" for message in messages if message["role"] == "assistant"]
        said = [span.removeprefix("<think>\n\n</think>\n\n") for span in supervised(rendered)]
        assert said == answers
        out = tokenize(rendered)
        assert isinstance(out, Sample)
        assert out["input_ids"].tolist() == tokenizer(rendered["text"], add_special_tokens=False).input_ids
