"""A small byte-level BPE tokenizer trained on the demo texts, with a ChatML template."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_text.chat import Chat

VOCABULARY = 2_048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train(
    chats: Iterable[Chat], *, vocabulary: int = VOCABULARY, special_tokens: Sequence[str] = SPECIAL_TOKENS
) -> Tokenizer:
    """The tokenizer of these chats; the same chats give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(chats, special_tokens), trainer)
    return tokenizer


def save(
    tokenizer: Tokenizer, folder: Path, *, special_tokens: Sequence[str] = SPECIAL_TOKENS, template: Path = TEMPLATE
) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, as ``transformers`` reads them.

    Of the special tokens the first is for padding and one is ``<|im_end|>``, which ends a turn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32_768,
        "pad_token": special_tokens[0],
        "eos_token": "<|im_end|>",
        "additional_special_tokens": [token for token in special_tokens[1:] if token != "<|im_end|>"],
        "chat_template": template.read_text(encoding="utf-8"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(chats: Iterable[Chat], special_tokens: Sequence[str]) -> Iterator[str]:
    """Everything the template would render of these chats, apart from the special tokens."""
    for chat in chats:
        for tool in chat.get("tools", ()):
            yield json.dumps(tool, ensure_ascii=False)
        for message in chat["messages"]:
            yield f"{message['role']}\n"
            yield _text(message["content"], special_tokens)
            for call in message.get("tool_calls", ()):
                yield json.dumps(call["function"], ensure_ascii=False)


def _text(content: str | list[dict[str, Any]], special_tokens: Sequence[str]) -> str:
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    for token in special_tokens:
        text = text.replace(token, "")
    return text
