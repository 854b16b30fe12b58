"""Bad chats and bad templates end in one clear error that names the place and the way out."""

import pickle

import pytest
from chat_templates import ALL, CHATML, CHATML_MARKED, PROMPTED_THINKING, THINKING, backend, call, chat, sample, wrapped
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop
from odb_stream.stages import ChatTemplate, Tokenize

ANSWER = {"role": "assistant", "content": "a"}
PLACE = r"shards/train-3\.tar, key '00042' \(sample 7, byte offset 1536\): "
SHAPES = [
    ("hello", "messages must be a list"),
    ({"role": "user", "content": "a"}, "messages must be a list"),
    (None, "messages must be a list"),
    ([], "empty list"),
    (["hello", ANSWER], "turn 0 must be an object"),
    ([{"content": "a"}, ANSWER], "turn 0 has no 'role'"),
    ([ANSWER, {"role": "gpt", "content": "a"}], "turn 1 has the unknown role 'gpt'"),
    ([{"role": ["user"], "content": "a"}, ANSWER], "turn 0 has the unknown role"),
    ([{"role": "user"}, ANSWER], r"turn 0 \(user\) has no content"),
    ([{"role": "user", "content": None}, ANSWER], r"turn 0 \(user\) has no content"),
    (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
        r"turn 1 \(assistant\) has no content",
    ),
    ([{"role": "user", "content": 5}, ANSWER], r"turn 0 \(user\) must be a string or a list"),
    ([{"role": "user", "content": ["a"]}, ANSWER], r"part 0 of turn 0 \(user\) must be an object with a 'type'"),
    ([{"role": "user", "content": [{"type": "text"}]}, ANSWER], "part 0 of turn 0 .* 'text' is not a string"),
    (
        [{"role": "user", "content": [{"type": "image"}]}, ANSWER],
        "image parts is 1, but the sample holds 0 measured images: put MeasureImages before",
    ),
    ([{"role": "user", "content": [{"type": "audio"}]}, ANSWER], "part 0 of turn 0 .* 'audio'"),
    ([{"role": "user", "content": [{"type": "image", "image": 3}]}, ANSWER], "holds an image of type int: give the"),
    ([{"role": "user", "content": [{"type": "video"}]}, ANSWER], "of type 'video': video is not supported"),
    ([{"role": "user", "content": "\ud800"}, ANSWER], r"turn 0 holds U\+D800"),
    ([{"role": "user", "content": "a", "tool_calls": [call()]}, ANSWER], "only assistant turns may call tools"),
    (
        [{"role": "user", "content": "a"}, {**ANSWER, "tool_calls": [{"function": "f"}]}],
        "tool_calls of turn 1 must hold",
    ),
    ([{"role": "user", "content": "a"}, {**ANSWER, "tool_calls": "f"}], "tool_calls of turn 1 must be a list"),
    ([{"role": "user", "content": "a"}, {**ANSWER, "reasoning_content": 3}], "reasoning_content of turn 1"),
]


@pytest.mark.parametrize(("messages", "words"), SHAPES)
def test_messages_of_the_wrong_shape(messages, words):
    with pytest.raises(StageError, match=PLACE + ".*" + words) as caught:
        ChatTemplate(wrapped(CHATML))(sample(messages=messages))
    assert type(pickle.loads(pickle.dumps(caught.value))) is StageError


def test_a_sample_without_messages():
    with pytest.raises(StageError, match=PLACE + r"the sample has no 'messages' \(its fields: text\)"):
        ChatTemplate(wrapped(CHATML))(sample(text="a"))


@pytest.mark.parametrize(
    ("tools", "words"), [("[{", "not JSON"), ({"a": 1}, "must be a list"), (["f"], "must be a list")]
)
def test_bad_tools(tools, words):
    with pytest.raises(StageError, match=PLACE + ".*" + words):
        ChatTemplate(wrapped(THINKING))(sample(messages=chat("a", "b"), tools=tools))


def test_tools_that_the_template_ignores():
    tools = [{"type": "function", "function": {"name": "find"}}]
    with pytest.raises(StageError, match=r"does not render tools.*tools_key=None"):
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
    with pytest.raises(StageError, match=PLACE + r".*does not render the content of turn 0 \(system\).*take it out"):
        stage(sample(messages=chat("be kind", "be kind", system="be kind")))
    # A blank content is lost without loss.
    assert stage(sample(messages=chat("a", "b", system="")))["text"]


def test_a_tool_call_that_is_not_rendered():
    messages = [*chat("a"), {"role": "assistant", "content": "", "tool_calls": [call("hello")]}]
    with pytest.raises(StageError, match=r"does not render the tool call of turn 1 \(assistant\)"):
        ChatTemplate(wrapped(CHATML))(sample(messages=messages))


def test_a_content_that_the_template_rewrites():
    shouts = CHATML.replace("message['content']", "(message['content'] | replace('q', 'Q'))")
    stage = ChatTemplate(wrapped(shouts))
    assert stage(sample(messages=chat("b", "c")))["spans"]
    with pytest.raises(StageError, match=r"does not render the content of turn 1 \(assistant\)"):
        stage(sample(messages=chat("b", "a question")))


def test_a_think_block_may_go_but_not_the_answer():
    cuts = PROMPTED_THINKING.replace(".split('</think>')[-1]", ".split('</think>')[0]")
    with pytest.raises(StageError, match=r"content of turn 1 \(assistant\)"):
        ChatTemplate(wrapped(cuts))(sample(messages=chat("q", "<think>r</think>the answer")))


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


def test_no_template():
    with pytest.raises(ConfigError, match=r"has no chat template: give one with ChatTemplate\(processor, template="):
        ChatTemplate(wrapped())
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatTemplate(backend())
    assert ChatTemplate(backend(), template=CHATML)(sample(messages=chat("a", "b")))["spans"]


def test_the_tokenizer_is_named_by_its_path(tmp_path):
    wrapped().save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigError, match="small"):
        ChatTemplate(AutoTokenizer.from_pretrained(tmp_path / "small"))


def test_not_a_fast_tokenizer():
    class Slow:
        chat_template = CHATML

    for stage in (ChatTemplate, Tokenize):
        with pytest.raises(ConfigError, match="Slow has no fast tokenizer"):
            stage(Slow())


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
