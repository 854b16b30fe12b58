"""The demo shards are what their tool writes, are whole, and look like chat data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from import_graph import ROOT

from odb_stream.shards.check import check_shard
from odb_stream.shards.tar import read_samples

DEMO = ROOT / "shards" / "demo"
SHARDS = sorted(DEMO.glob("chat-*.tar"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the tool has just written."""
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_demo_shards.py"), str(folder)], check=True, timeout=120)
    return folder


def test_the_tool_writes_the_same_files_again(made: Path) -> None:
    names = {path.relative_to(DEMO) for path in DEMO.rglob("*") if path.is_file()}
    assert names == {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for name in sorted(names - {Path("tokenizer/tokenizer.json")}):
        assert (made / name).read_bytes() == (DEMO / name).read_bytes(), name


def test_the_tokenizer_comes_out_the_same(made: Path) -> None:
    # Compared by content: the layout of the file is the tokenizers library's and may differ between its versions.
    new, old = (json.loads((folder / "tokenizer" / "tokenizer.json").read_text()) for folder in (made, DEMO))
    assert new["model"]["vocab"] == old["model"]["vocab"]
    assert new["model"]["merges"] == old["model"]["merges"]
    assert [token["content"] for token in new["added_tokens"]] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in DEMO.rglob("*")) < 2_000_000


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: shard.name)
def test_a_shard_is_whole_and_its_index_fits(shard: Path) -> None:
    report = check_shard(str(shard))
    assert report.problems == ()
    assert (report.samples, report.index) == (190, "good")


def test_they_hold_every_form_of_the_format() -> None:
    chats = [json.loads(sample.members["json"]) for shard in SHARDS for sample in read_samples(str(shard))]
    messages = [message for chat in chats for message in chat["messages"]]
    assert {message["role"] for message in messages} == {"system", "user", "assistant", "tool"}
    assert any("tools" in chat for chat in chats)
    assert any("tool_calls" in message for message in messages)
    assert any(isinstance(message["content"], list) for message in messages)
    assert any("<|im_end|>" in message["content"] for message in messages)
    assert any(len(chat["messages"]) > 20 for chat in chats)
    assert len({json.dumps(chat) for chat in chats}) == len(chats) == 760
