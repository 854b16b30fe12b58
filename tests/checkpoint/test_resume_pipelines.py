"""Going on from any step over real sources: shards with and without an index, damaged ones, mixes, images."""

import json
import sys
from pathlib import Path

import pytest
from loader_data import Ready, jitter
from make_tars import write_texts
from resume_support import check_every_cut

import odb_stream as odb

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "pipelines"))

import vision_chat  # noqa: E402 - found by the line before

SMALL = {"budget": odb.Budget(tokens=300), "window": 32, "lookahead": 4, "seed": 3}


def letters(sample: odb.Sample) -> dict:
    """One token a letter."""
    return {"input_ids": [ord(letter) % 90 for letter in sample["text"]]}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_over_shards(tmp_path: Path, indexed: bool, shuffle: bool) -> None:
    addresses = write_texts(tmp_path, [40, 300, 25], indexed=indexed)
    pipeline = odb.Pipeline(odb.Shards(addresses, shuffle=shuffle), letters, jitter)
    check_every_cut(lambda: odb.Loader(pipeline, **SMALL), cuts=range(0, 60, 3))


@pytest.mark.parametrize("indexed", [True, False])
def test_over_damaged_shards_every_loss_is_counted_once(tmp_path: Path, indexed: bool) -> None:
    addresses = write_texts(tmp_path, [60, 60], indexed=indexed)
    for address in addresses:
        data = bytearray(Path(address).read_bytes())
        for sample in (11, 12, 40):
            data[sample * 1024 : sample * 1024 + 8] = b"\xff" * 8
        Path(address).write_bytes(data)
    pipeline = odb.Pipeline(odb.Shards(addresses, on_damage="drop"), letters)
    folder = tmp_path / "bad"
    check_every_cut(lambda: odb.Loader(pipeline, quarantine=str(folder), **SMALL))
    lines = [json.loads(line) for line in (folder / "rank-00000.jsonl").read_text().splitlines()]
    with odb.Loader(pipeline, **SMALL) as stream:
        for batch in stream:
            odb.pop_step(batch)
        dropped = stream.report()["dropped"]
    assert sum(dropped.values()) == len([line for line in lines if line["epoch"] == 0]) > 5


@pytest.mark.parametrize("mode", ["weights", "once"])
def test_over_a_mix(tmp_path: Path, mode: str) -> None:
    text = odb.Pipeline(odb.Shards(write_texts(tmp_path, [50], indexed=True)), letters)
    ready = odb.Pipeline(odb.FromDataset(Ready(30)))
    pipeline = odb.Pipeline(odb.Mix({"text": (text, 2), "ready": (ready, 1)}, mode=mode), jitter)
    check_every_cut(lambda: odb.Loader(pipeline, **SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_over_images(layout: str) -> None:
    pipeline = vision_chat.build()
    settings = {"budget": odb.Budget(tokens=4096), "window": 24, "lookahead": 6, "max_bytes": 60 << 20}
    check_every_cut(lambda: odb.Loader(pipeline, layout=layout, **settings), epochs=1, cuts=range(0, 40, 5))
