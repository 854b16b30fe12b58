"""Real chats through the recipe: every sample once or dropped with a reason, tokens equal to tokenizing directly.

Skipped where the data of the benchmarks is absent.
"""

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import odb_stream as odb
from odb_stream.shards.writer import jsonl_samples, write_shards

ROOT = Path(__file__).parents[2]
CHATS = ROOT.parent / "shared" / "data" / "chat"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHATS.is_dir(), reason="the benchmark chats are not here"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ROOT / "shards" / "demo" / "tokenizer")


@pytest.mark.parametrize("name", ["alpaca_en", "alpaca_zh", "toolcall_en", "toolcall_zh"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_real_chat_comes_out_once_and_equal_to_direct_tokenizing(tmp_path, tokenizer, name, layout):
    sys.path.insert(0, str(ROOT / "pipelines"))
    from text_chat import build

    source = CHATS / f"{name}.jsonl"
    write_shards(jsonl_samples(str(source)), str(tmp_path), samples_per_shard=128)
    chats = [json.loads(line)["messages"] for line in source.read_text(encoding="utf-8").splitlines()]
    direct = [
        tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False).input_ids
        for chat in chats
    ]
    pipeline = build(shards=f"{tmp_path}/*.tar", max_length=1_000_000)
    seen = {}
    with odb.Loader(pipeline, budget=odb.Budget(tokens=16_384), layout=layout, oversize="solo") as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            for place, ref in enumerate(step.refs):
                seen[128 * ref.shard + ref.index] = row_of(batch, place, layout)
        report = loader.report()
    assert len(seen) == report["emitted"] == len(chats) - sum(report["dropped"].values())
    assert set(report["dropped"]) <= {"nothing_supervised"}
    assert all(ids == direct[index] for index, ids in seen.items())


def row_of(batch, place, layout):
    """The token ids of one sample of a batch."""
    if layout == "packed":
        start, stop = batch["cu_seq_lens_q"][place : place + 2].tolist()
        return batch["input_ids"][0, start:stop].tolist()
    return batch["input_ids"][place][batch["attention_mask"][place] == 1].tolist()
