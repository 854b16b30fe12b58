"""The command inspect: its JSON, tables, page and pictures, and what it refuses before a long run."""

import json
import re
import struct
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from cli_support import NUMBERS_RECIPE, odb_stream

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


@pytest.mark.parametrize("all_of_it", ["all", "0"])
def test_all_samples_are_the_whole_epoch(cli, numbers, all_of_it):
    got = found(cli("inspect", numbers, "--samples", all_of_it, "--json"))
    assert (got["samples"]["read"], got["samples"]["whole_epoch"]) == (50, True)
    assert got["samples"]["dropped"] == {"every_tenth": 5}


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


def test_memory_sets_the_budget(cli, numbers):
    got = found(cli("inspect", numbers, "--memory", "1MB", "--token-bytes", 1000, "--json"))
    assert got["settings"]["budget"] == got["suggestion"]["budget"]["tokens"] == 768


def test_shards_reach_the_recipe(cli, chat_recipe, shards):
    got = found(cli("inspect", chat_recipe, "--shards", f"{shards}/shard-000000.tar", "--json"))
    assert (got["samples"]["read"], got["samples"]["kept"]) == (25, 25)


class Page(HTMLParser):
    """The tags and the text of a page, and every address in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]

    def handle_data(self, data) -> None:
        self.text += data


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(cli, recipe, tmp_path):
    path = recipe(MIX_RECIPE)
    got = cli("inspect", path, "--html", tmp_path / "page.html", "--png", tmp_path / "page.png")
    assert got.exit_code == 0, got.output
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert (page.tags.count("svg"), page.tags.count("h1")) == (4, 1)
    assert page.tags.count("table") >= 6
    assert "b" not in page.tags
    assert "<b>bold</b> $\\oops$" in page.text
    assert "_two & more" in page.text
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"url\((?!#)|@import|<script|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "#111112" not in text
    width, height = png_size((tmp_path / "page.png").read_bytes())
    assert width == 1200
    assert height > 1000


FAILS = "raise AssertionError('the recipe ran')\n"


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_missing_matplotlib_is_reported_before_the_run(refuses, recipe, tmp_path, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refuses("inspect", recipe(FAILS), option, tmp_path / "out", code=2)
    assert 'pip install "odb-stream[viz]"' in line
    assert option in line
    assert list(tmp_path.glob("out")) == []


def test_an_unwritable_file_is_refused_before_the_run(refuses, recipe, tmp_path):
    assert "is a folder" in refuses("inspect", recipe(FAILS), "--png", tmp_path, code=2)
    assert "no folder" in refuses("inspect", recipe(FAILS), "--html", tmp_path / "gone" / "a.html", code=2)


WRONG = {
    "--samples is 'some'": ("--samples", "some"),
    "--samples is '-1'": ("--samples", "-1"),
    "--budget is 0": ("--budget", 0),
    "window is 0": ("--window", 0),
    "world_size is 0": ("--world-size", 0),
    "workers is -1": ("--workers", -1),
    "--memory is 'much'": ("--memory", "much", "--token-bytes", 5),
    "--host-memory is 'much'": ("--host-memory", "much"),
    "--model was given without --memory": ("--model", "config.json"),
    "--token-bytes was given without --memory": ("--token-bytes", 5),
    "give the model's config.json": ("--memory", "1GiB"),
    "gone.json cannot be read": ("--memory", "1GiB", "--model", "gone.json"),
}


@pytest.mark.parametrize(("message", "options"), WRONG.items(), ids=WRONG)
def test_a_setting_out_of_range_is_named_with_its_value(refuses, numbers, message, options):
    assert message in refuses("inspect", numbers, *options, code=2)


def test_nothing_to_inspect_is_an_error_with_its_cause(refuses, recipe):
    path = recipe(NUMBERS_RECIPE.replace("sample.ref.index % 10 == 0", "True"))
    assert "all 50 samples read were dropped (every_tenth: 50" in refuses("inspect", path, code=1)
    empty = recipe(NUMBERS_RECIPE.replace("return 50", "return 0"))
    assert "contains no sample" in refuses("inspect", empty, code=2)


def test_simulate_draws_the_policies_too(cli, refuses, tmp_path):
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 900, 200))
    given = ("simulate", "--lengths", tmp_path / "lengths.npy")
    for policy in ("all", "anchored"):
        result = cli(*given, "--policy", policy, "--png", tmp_path / "policies.png")
        assert result.exit_code == 0, result.output
        assert png_size((tmp_path / "policies.png").read_bytes())[0] == 1200
    assert "is a folder" in refuses(*given, "--png", tmp_path, code=2)


@pytest.mark.slow
def test_a_recipes_own_stage_runs_in_worker_processes(recipe):
    path = recipe(NUMBERS_RECIPE)
    here, there = (odb_stream("inspect", path, "--workers", count, "--json") for count in (0, 2))
    assert (here.returncode, there.returncode, there.stderr) == (0, 0, "")
    figures = [json.loads(done.stdout) for done in (here, there)]
    assert [len(one.pop("times")) for one in figures] == [4, 4]
    assert figures[0] == figures[1]
