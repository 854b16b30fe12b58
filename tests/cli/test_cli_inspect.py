"""The command inspect: its JSON, tables, page and pictures."""

import json
import re
import struct
import sys
from html import unescape

import numpy as np
import pytest
from cli_support import FAILS, NUMBERS_RECIPE

KEYS = [
    "settings", "samples", "lengths", "histogram", "supervised", "held_bytes", "images", "times", "decoding",
    "policies", "suggestion",
]  # fmt: skip
MODEL = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 160, "vocab_size": 500, "num_attention_heads": 4,
}  # fmt: skip
MIX_RECIPE = NUMBERS_RECIPE.replace(
    "    return odb.Pipeline(odb.FromDataset(Numbers()), every_tenth)",
    "    one, two = (odb.Pipeline(odb.FromDataset(Numbers()), every_tenth) for _ in range(2))\n"
    "    return odb.Pipeline(odb.Mix({'<b>bold</b> $\\\\oops$': (one, 1), '_two & more': (two, 1)}))",
)


@pytest.fixture
def numbers(recipe):
    return recipe(NUMBERS_RECIPE)


def found(result) -> dict:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_the_json_is_one_object_with_the_documented_keys(cli, numbers):
    options = ("--budget", 60, "--window", 8, "--lookahead", 4, "--world-size", 2, "--layout", "packed", "--seed", 3)
    got = found(cli("inspect", numbers, *options, "--batch-size", 3, "--samples", 30, "--json"))
    assert list(got) == KEYS
    assert got["settings"] == {
        "budget": 60, "layout": "packed", "window": 8, "lookahead": 4, "batch_size": 3, "world_size": 2
    }  # fmt: skip
    counts = got["samples"]
    assert (counts["read"], counts["epoch"], counts["whole_epoch"]) == (30, 50, False)
    assert counts["kept"] + counts["dropped"]["every_tenth"] == 30
    assert (got["lengths"]["min"], got["lengths"]["max"]) == (2, 12)
    assert [row["stage"] for row in got["times"]] == ["read", "open (DatasetOpener)", "every_tenth", "checks"]
    assert (got["images"], got["decoding"], got["suggestion"]["budget"]) == (None, None, None)
    for everything in ("all", "0"):
        whole = found(cli("inspect", numbers, "--samples", everything, "--json"))["samples"]
        assert (whole["read"], whole["whole_epoch"], whole["dropped"]) == (50, True, {"every_tenth": 5})


def test_the_tables_hold_what_was_found(cli, numbers, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    model = ("--memory", "20MB", "--model", tmp_path / "config.json", "--bytes-per-parameter", 2)
    result = cli("inspect", numbers, *model)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "dropped: every_tenth", "tokens a sample", "supervised share", "time per stage", "paper-window",
        "suggested budget", "window and lookahead", "█", "the whole epoch", "with checkpointing",
    ):  # fmt: skip
        assert words in result.stdout, words
    without = cli("inspect", numbers).stdout
    assert "give --memory with --model or --token-bytes" in without
    assert "longer than 16,384 tokens" in without


def test_shards_reach_the_recipe_and_memory_sets_the_budget(cli, chat_recipe, shards):
    memory = ("--memory", "1MB", "--token-bytes", 1000)
    got = found(cli("inspect", chat_recipe, "--shards", f"{shards}/shard-000000.tar", *memory, "--json"))
    assert (got["samples"]["read"], got["samples"]["kept"]) == (25, 25)
    assert got["settings"]["budget"] == got["suggestion"]["budget"]["tokens"] == 768


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(cli, recipe, tmp_path):
    path = recipe(MIX_RECIPE)
    got = cli("inspect", path, "--html", tmp_path / "page.html", "--png", tmp_path / "page.png")
    assert got.exit_code == 0, got.output
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    tags, shown = re.findall(r"<(\w+)", text), unescape(re.sub(r"<[^>]*>", "", text))
    assert (tags.count("svg"), tags.count("h1")) == (4, 1)
    assert tags.count("table") >= 6
    assert "b" not in tags
    assert "<b>bold</b> $\\oops$" in shown
    assert "_two & more" in shown
    addresses = re.findall(r'\b(?:src|href|srcset)="(.)', text)
    assert set(addresses) == {"#"}
    assert not re.search(r"url\((?!#)|@import|<script|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "#111112" not in text
    width, height = png_size((tmp_path / "page.png").read_bytes())
    assert width == 1200
    assert height > 1000


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_missing_matplotlib_is_reported_before_the_run(refuses, recipe, tmp_path, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refuses("inspect", recipe(FAILS), option, tmp_path / "out", code=2)
    assert 'pip install "odb-stream[viz]"' in line
    assert option in line
    assert list(tmp_path.glob("out")) == []


def test_simulate_draws_the_policies_too(cli, refuses, tmp_path):
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 900, 200))
    given = ("simulate", "--lengths", tmp_path / "lengths.npy")
    for policy in ("all", "anchored"):
        result = cli(*given, "--policy", policy, "--png", tmp_path / "policies.png")
        assert result.exit_code == 0, result.output
        assert png_size((tmp_path / "policies.png").read_bytes())[0] == 1200
    assert "is a folder" in refuses(*given, "--png", tmp_path, code=2)
