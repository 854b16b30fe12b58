"""Real chats, where they are at hand: rendering, ids and spans equal to transformers' and to the contents."""

import json
from pathlib import Path

import pytest
from chat_templates import ALL, sample, supervised, wrapped

from odb_stream.sample import Sample
from odb_stream.stages import ChatTemplate, Tokenize

CHATS = Path(__file__).parents[4] / "shared" / "data" / "chat"


@pytest.mark.skipif(not CHATS.is_dir(), reason="the real chats are not part of the project")
@pytest.mark.parametrize("name", ["chatml", "marked", "thinking", "thinking_marked"])
@pytest.mark.parametrize("file", ["alpaca_en", "alpaca_zh", "toolcall_en", "toolcall_zh"])
def test_real_chats(name, file):
    tokenizer = wrapped(ALL[name])
    template, tokenize = ChatTemplate(tokenizer), Tokenize(tokenizer)
    for line in (CHATS / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()[:300]:
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
