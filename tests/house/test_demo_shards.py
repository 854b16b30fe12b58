"""The committed shards are whole, hold what their page says, and every chat of theirs trains."""

import importlib
import io
import json
import re
import sys
from collections import Counter
from functools import cache
from typing import Any

import pytest
from import_graph import ROOT
from PIL import ExifTags, Image

import odb_stream as odb
from odb_stream.shards.check import check_shard
from odb_stream.shards.reader import read_samples

FOLDER = ROOT / "shards"
SHARDS = sorted(FOLDER.glob("*/chat-*.tar"))
SIZES = {"demo": 760, "vision": 400}


@cache
def samples(name: str) -> dict[str, dict[str, bytes]]:
    """Members by key, in the order of the shards."""
    return {
        sample.key: dict(sample.members)
        for shard in SHARDS
        if shard.parent.name == name
        for sample in read_samples(str(shard))
    }


def chats(name: str) -> list[dict[str, Any]]:
    return [json.loads(members["json"]) for members in samples(name).values()]


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: f"{shard.parent.name}-{shard.stem}")
def test_a_shard_is_whole_and_its_index_fits(shard: Any) -> None:
    report = check_shard(str(shard))
    assert report.problems == ()
    assert (report.samples, report.index) == (SIZES[shard.parent.name] // 4, "good")


@pytest.mark.parametrize(("name", "most_bytes"), [("demo", 2_000_000), ("vision", 3_000_000)])
def test_they_are_small_differ_and_the_page_counts_their_kinds(name: str, most_bytes: int) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*")) < most_bytes
    assert len({tuple(sorted(members.items())) for members in samples(name).values()}) == SIZES[name]
    page = (FOLDER / "README.md").read_text(encoding="utf-8").split(f"\n### {name}\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| (\d+) \|$", page, re.M)
    listed = {tuple(re.findall(r"`([^`]+)`", kinds)): int(count) for kinds, count in rows}
    held = Counter(key.rpartition("-")[0] for key in samples(name))
    assert {kinds: sum(held[kind] for kind in kinds) for kinds in listed} == listed
    assert sum(listed.values()) == SIZES[name] == len(samples(name)) == held.total()


@pytest.mark.parametrize(
    ("name", "entries", "special_tokens"),
    [
        ("demo/tokenizer", 2_048, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        (
            "vision/processor",
            768,
            [
                "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
                "<|video_pad|>",
            ],
        ),
    ],
)  # fmt: skip
def test_the_tokenizers_are_as_the_page_says(name: str, entries: int, special_tokens: list[str]) -> None:
    tokenizer = json.loads((FOLDER / name / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(tokenizer["model"]["vocab"]) == entries
    assert [token["content"] for token in tokenizer["added_tokens"]] == special_tokens
    assert f"{entries:,} entries" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), [("demo", "text_chat"), ("vision", "vision_chat")])
def test_every_chat_trains(name: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recipe drops none of them, and each has supervised tokens."""
    monkeypatch.syspath_prepend(str(ROOT / "pipelines"))
    monkeypatch.delitem(sys.modules, recipe, raising=False)
    pipeline = importlib.import_module(recipe).build()
    with odb.Loader(pipeline, budget=odb.Budget(tokens=16_384), layout="padded") as loader:
        for batch in loader:
            odb.pop_step(batch)
            # The label of the first token is never predicted.
            assert (batch["labels"][:, 1:] != -100).any(dim=1).all()
        report = loader.report()
    assert (report["emitted"], report["dropped"]) == (SIZES[name], {})


def test_the_text_holds_every_form_of_the_format() -> None:
    messages = [message for chat in chats("demo") for message in chat["messages"]]
    assert {message["role"] for message in messages} == {"system", "user", "assistant", "tool"}
    assert any("tools" in chat for chat in chats("demo"))
    assert any("tool_calls" in message for message in messages)
    assert any(isinstance(message["content"], list) for message in messages)
    assert any("<|im_end|>" in message["content"] for message in messages)
    assert any(len(chat["messages"]) > 20 for chat in chats("demo"))


def test_the_chats_with_images_hold_every_form_of_the_format() -> None:
    parts = [
        part
        for chat in chats("vision")
        for message in chat["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    assert {len(members) - 1 for members in samples("vision").values()} == {0, 1, 2, 3, 4}
    roles = {message["role"] for chat in chats("vision") for message in chat["messages"]}
    assert roles == {"system", "user", "assistant"}
    assert {"image" in part for part in parts if part["type"] == "image"} == {True, False}
    assert any(len(chat["messages"]) > 5 for chat in chats("vision"))
    assert any("<|image_pad|>" in str(chat) for chat in chats("vision"))
    questions = [chat["messages"][-2]["content"] for chat in chats("vision")]
    assert {parts[0]["type"] for parts in questions if isinstance(parts, list)} == {"text", "image"}


def test_the_images_have_every_form() -> None:
    images = [
        Image.open(io.BytesIO(data))
        for members in samples("vision").values()
        for name, data in members.items()
        if name != "json"
    ]
    assert {image.format for image in images} == {"JPEG", "PNG", "WEBP"}
    assert {image.mode for image in images} == {"RGB", "RGBA", "P"}
    assert any(image.info.get("progressive") for image in images)
    assert any(image.getexif().get(ExifTags.Base.Orientation) == 6 for image in images)
    longer, shorter = (pick(size for image in images for size in image.size) for pick in (max, min))
    assert (shorter, longer > 900) == (32, True)
    assert max(image.width / image.height for image in images) > 10
