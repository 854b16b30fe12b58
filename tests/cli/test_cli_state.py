"""The command ``state``: explains saved states from JSON files and from checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import odb_stream as odb
from odb_stream.checkpoint import merge


def lines(index: int) -> dict:
    return {"input_ids": np.full(2 + index % 30, index + 1, np.int32)}


@pytest.fixture(scope="module")
def saved() -> dict:
    pipeline = odb.Pipeline(odb.FromDataset([lines(index) for index in range(200)]))
    with odb.Loader(pipeline, budget=odb.Budget(128), window=32, lookahead=8) as loader:
        iterator = iter(loader)
        for _ in range(5):
            odb.pop_step(next(iterator))
        return loader.state_dict()


def test_a_state_in_words(cli, saved: dict, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(saved))
    output = cli("state", str(tmp_path / "state.json")).stdout
    for words in ("rank 0 of 1", "steps made in the epoch", "samples held", "window 32", "dataset list of 200 items"):
        assert words in output
    found = json.loads(cli("state", str(tmp_path / "state.json"), "--json").stdout)
    assert found["steps made in the epoch"] == 5
    assert found["emitted in all epochs"] == found["samples emitted in the epoch, all ranks"] > 5
    assert found["samples held"] > 32


def test_states_inside_a_checkpoint_are_found(cli, saved: dict, tmp_path: Path) -> None:
    merged = merge([saved])
    torch.save({"model": {"weight": torch.zeros(2)}, "data": [saved, {"all": merged}]}, tmp_path / "checkpoint.pt")
    found = json.loads(cli("state", str(tmp_path / "checkpoint.pt"), "--json").stdout)
    assert [one["in the file at"] for one in found] == ["data[0]", "data[1].all"]
    assert found[1]["kind"] == "merged from 1 ranks, for any number of ranks"


@pytest.mark.parametrize("content", [b"{}", b"nonsense", None])
def test_a_file_without_a_state_is_refused_in_one_line(refuses, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refuses("state", path, code=2)
