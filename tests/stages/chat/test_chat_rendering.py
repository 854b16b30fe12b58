"""The rendering is the one that transformers gives, without transformers in the worker.

Bad chats and bad templates end in one clear error that names the place and the way out.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from chat_templates import (
    ALL,
    CHATML,
    CHATML_MARKED,
    PROMPTED_THINKING,
    THINKING,
    backend,
    call,
    chat,
    supervised,
    wrapped,
)
from stage_samples import PLACE, sample
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop, Sample
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


ANSWER = {"role": "assistant", "content": "a"}


def user(content, **fields):
    """A chat whose first message is this user's."""
    return [{"role": "user", "content": content, **fields}, ANSWER]


SHAPES = [
    ("hello", "must be a list.*'hello'"),
    ({"role": "user", "content": "a"}, "must be a list.*dict"),
    (None, "must be a list.*None"),
    ([], "empty list"),
    (["hello", ANSWER], "turn 0 .* 'hello'"),
    ([{"content": "a"}, ANSWER], "turn 0 has no 'role'"),
    ([ANSWER, {"role": "gpt", "content": "a"}], "turn 1 .* 'gpt'"),
    ([{"role": ["user"], "content": "a"}, ANSWER], r"turn 0 .* \['user'\]"),
    ([{"role": "user"}, ANSWER], r"turn 0 \(user\) has no content"),
    (user(None), r"turn 0 \(user\) has no content"),
    ([*user("a")[:1], {"role": "assistant", "content": None}], r"turn 1 \(assistant\) has no content"),
    (user(5), r"turn 0 \(user\) must be a string or a list"),
    (user(["a"]), r"part 0 of turn 0 \(user\) .* 'a'"),
    (user([{"type": "text"}]), "part 0 of turn 0 .*'text' is not a string"),
    (user([{"type": "image"}]), "parts is 1, .* 0 measured images: put MeasureImages before"),
    (user([{"type": "audio"}]), "part 0 of turn 0 .* 'audio'"),
    (user([{"type": "image", "image": 3}]), "part 0 of turn 0 .* int"),
    (user([{"type": "image", "image": {"bytes": b""}}]), "part 0 of turn 0 .* dict"),
    (user([{"type": "image_url"}]), "part 0 of turn 0 .*'image_url'"),
    (user([{"type": "video"}]), "part 0 of turn 0 .*video is not supported"),
    (user([{"type": "video_url"}]), "part 0 of turn 0 .*'video_url': video is not supported"),
    (user("\ud800"), r"turn 0 holds U\+D800"),
    (user("a", tool_calls=[call()]), r"turn 0 \(user\) has tool_calls"),
    ([*user("a")[:1], {**ANSWER, "tool_calls": [{"function": "f"}]}], "tool_calls of turn 1 must hold"),
    ([*user("a")[:1], {**ANSWER, "tool_calls": "f"}], "tool_calls of turn 1 must be a list"),
    ([*user("a")[:1], {**ANSWER, "reasoning_content": 3}], "reasoning_content of turn 1"),
]


@pytest.mark.parametrize(("messages", "words"), SHAPES)
def test_messages_of_the_wrong_shape(messages, words):
    with pytest.raises(StageError, match=PLACE + ".*" + words) as caught:
        ChatTemplate(wrapped(CHATML))(sample(messages=messages))
    assert type(pickle.loads(pickle.dumps(caught.value))) is StageError


def test_a_sample_without_messages():
    with pytest.raises(StageError, match=PLACE + r": .*'messages' \(its fields: text\)"):
        ChatTemplate(wrapped(CHATML))(sample(text="a"))


@pytest.mark.parametrize(("tools", "words"), [("[{", "not JSON"), ({"a": 1}, "dict"), (["f"], "list .*'f'")])
def test_bad_tools(tools, words):
    with pytest.raises(StageError, match=PLACE + ": .*" + words):
        ChatTemplate(wrapped(THINKING))(sample(messages=chat("a", "b"), tools=tools))


def test_tools_that_the_template_ignores():
    tools = [{"type": "function", "function": {"name": "find"}}]
    with pytest.raises(StageError, match="tools_key=None"):
        ChatTemplate(wrapped(CHATML))(sample(messages=chat("a", "b"), tools=tools))
    assert ChatTemplate(wrapped(CHATML), tools_key=None)(sample(messages=chat("a", "b"), tools=tools))["text"]


@pytest.mark.parametrize("name", ["chatml", "marked"])
def test_nothing_to_supervise_is_a_drop(name):
    dropped = ChatTemplate(wrapped(ALL[name]))(sample(messages=[{"role": "user", "content": "a"}]))
    assert isinstance(dropped, Drop)
    assert dropped.reason == "nothing_supervised"
    assert "00042" in dropped.detail


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED])
def test_a_content_that_is_not_rendered(template):
    ignores_system = template.replace(
        "{%- for message in messages -%}", "{%- for message in messages if message.role != 'system' -%}"
    )
    stage = ChatTemplate(wrapped(ignores_system))
    # The same text elsewhere in the chat does not count.
    with pytest.raises(StageError, match=PLACE + r": .*turn 0 \(system\)"):
        stage(sample(messages=chat("be kind", "be kind", system="be kind")))
    # A blank content is lost without loss.
    assert stage(sample(messages=chat("a", "b", system="")))["text"]


ONE_CALL = [*chat("a"), {"role": "assistant", "content": "", "tool_calls": [call("hello")]}]
SHOUTS = CHATML.replace("message['content']", "(message['content'] | replace('q', 'Q'))")
CUTS = PROMPTED_THINKING.replace(".split('</think>')[-1]", ".split('</think>')[0]")


@pytest.mark.parametrize(
    ("template", "good", "bad", "words"),
    [
        (CHATML, chat("a", "b"), ONE_CALL, "tool call"),
        (SHOUTS, chat("b", "c"), chat("b", "a question"), "content"),
        (CUTS, chat("q", "r"), chat("q", "<think>r</think>the answer"), "content"),  # a think block alone may go
    ],
)
def test_an_answer_that_is_not_rendered_or_rewritten(template, good, bad, words):
    stage = ChatTemplate(wrapped(template))
    assert stage(sample(messages=good))["spans"]
    with pytest.raises(StageError, match=rf"{words} of turn 1 \(assistant\)"):
        stage(sample(messages=bad))


BAD_TEMPLATES = [
    ("{{- messages[-1].content -}}", "does not render the content of turn 0"),
    ("{%- for m in messages -%}{{- m.role + m.content + '\\n' -}}", "not valid Jinja"),
    ("{%- for m in messages -%}{{- m.role + ': ' + m.content -}}{%- endfor -%}", "learn to stop"),
    ("{{- raise_exception('never') -}}", "raises on a plain chat .never."),
    ("{%- for m in messages -%}{{- m.content | upper + '<|im_end|>' -}}{%- endfor -%}", "changes the contents"),
    ("{%- for m in messages -%}{{- m.content[:3] + '<|im_end|>' -}}{%- endfor -%}", "changes the contents"),
    (CHATML.replace("message['content']", "message['content'] + message['content']"), "renders contents twice"),
    (CHATML.replace("'<|im_start|>assistant\\n' -}}{%- endif", "'<|start|>' -}}{%- endif"), "neither begins with"),
    (CHATML_MARKED.replace("== 'assistant'", "== 'user'"), "enclose the user turns"),
    (CHATML_MARKED.replace("== 'assistant'", "== 'nobody'"), "enclose no content"),
]


@pytest.mark.parametrize(("template", "words"), BAD_TEMPLATES)
def test_templates_without_sound_spans_fail_at_construction(template, words):
    with pytest.raises(ConfigError, match=words) as caught:
        ChatTemplate(wrapped(template))
    message = str(caught.value)
    assert "TokenizersBackend" in message or PreTrainedTokenizerFast.__name__ in message
    assert "not valid Jinja" in message or "ChatTemplate(processor, template=" in message


def test_no_template(tmp_path):
    for tokenizer in (wrapped(), backend()):
        with pytest.raises(ConfigError, match=r"has no chat template.*template="):
            ChatTemplate(tokenizer)
    wrapped().save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigError, match="small"):  # a loaded tokenizer is named by its path
        ChatTemplate(AutoTokenizer.from_pretrained(tmp_path / "small"))
    assert ChatTemplate(backend(), template=CHATML)(sample(messages=chat("a", "b")))["spans"]


def test_not_a_fast_tokenizer():
    for stage in (ChatTemplate, Tokenize):
        with pytest.raises(ConfigError, match="SimpleNamespace has no fast tokenizer"):
            stage(SimpleNamespace(chat_template=CHATML))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train_on": "first"}, "train_on is 'first'"),
        ({"template": ""}, "template must be"),
        ({"template": 3}, "template must be"),
        ({"template_kwargs": {"tools": []}}, "template_kwargs holds 'tools'"),
    ],
)
def test_bad_settings_of_chat_template(settings, words):
    with pytest.raises(ConfigError, match=words):
        ChatTemplate(wrapped(CHATML), **settings)
