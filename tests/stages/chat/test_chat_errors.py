"""Bad chats and bad templates end in one clear error that names the place and the way out."""

import pickle
from types import SimpleNamespace

import pytest
from chat_templates import ALL, CHATML, CHATML_MARKED, PROMPTED_THINKING, THINKING, backend, call, chat, wrapped
from stage_samples import PLACE, sample
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop
from odb_stream.stages import ChatTemplate, Tokenize

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


CALLS = [*chat("a"), {"role": "assistant", "content": "", "tool_calls": [call("hello")]}]
SHOUTS = CHATML.replace("message['content']", "(message['content'] | replace('q', 'Q'))")
CUTS = PROMPTED_THINKING.replace(".split('</think>')[-1]", ".split('</think>')[0]")


@pytest.mark.parametrize(
    ("template", "good", "bad", "words"),
    [
        (CHATML, chat("a", "b"), CALLS, "tool call"),
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
