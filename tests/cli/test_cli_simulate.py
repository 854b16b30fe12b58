"""The command simulate: the figures as JSON and as a table, and what it refuses."""

import json

import numpy as np
import pytest

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import deal, simulate
from odb_stream.config import Budget

KEYS = [
    "policy", "layout", "world_size", "window", "steps", "emitted", "dropped", "idle_steps", "padding_ratio",
    "real_utilisation", "critical_ratio", "over_budget_groups", "max_delay", "seconds",
]  # fmt: skip
POLICIES = ("anchored", "paper-window", "fixed", "gmt", "bmt")
LENGTHS = np.random.default_rng(0).integers(1, 900, 400).astype(np.int32)


@pytest.fixture
def lengths(tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    return tmp_path / "lengths.npy"


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_json_is_one_object_with_the_figures(cli, lengths, policy, layout):
    options = ("--layout", layout, "--window", 64, "--lookahead", 16, "--token-budget", 800, "--batch-size", 3)
    more = ("--pad-to-multiple-of", 8, "--world-size", 2)
    result = cli("simulate", "--lengths", lengths, "--policy", policy, *options, *more, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    figures = json.loads(result.stdout)
    assert list(figures) == KEYS
    footprint = Footprint(layout, Budget(800), 8)
    ranks = deal(LENGTHS.tolist(), 2)
    expected = simulate(ranks, policy=policy, footprint=footprint, window=64, lookahead=16, batch_size=3)
    assert {key: figures[key] for key in KEYS[:-1]} == {key: getattr(expected, key) for key in KEYS[:-1]}
    assert figures["seconds"] > 0


def test_shares_set_the_ranks(cli, lengths):
    command = ("simulate", "--lengths", lengths, "--policy", "fixed", "--json")
    equal, uneven = (json.loads(cli(*command, *ranks).stdout) for ranks in (("--world-size", 3), ("--shares", "1,1,2")))
    assert equal["world_size"] == uneven["world_size"] == 3
    assert (equal["steps"], uneven["steps"]) == (17, 25)


@pytest.mark.parametrize("policy", POLICIES)
def test_eight_uneven_ranks(cli, lengths, policy):
    """Every sample is emitted, whatever the shares; only rebalancing keeps the ranks with little data busy."""
    ranks = ("--world-size", 8, "--shares", "1,2,3,4,5,6,7,8")
    options = ("--policy", policy, *ranks, "--window", 16, "--token-budget", 1000)
    figures = json.loads(cli("simulate", "--lengths", lengths, *options, "--json").stdout)
    still = json.loads(cli("simulate", "--lengths", lengths, *options, "--no-rebalance", "--json").stdout)
    assert list(figures) == list(still) == KEYS
    assert figures["world_size"] == 8
    assert figures["emitted"] == still["emitted"] == len(LENGTHS)
    if policy == "anchored":
        assert figures["idle_steps"] <= 7
        assert still["idle_steps"] > figures["steps"]
        assert still["critical_ratio"] > 1.3 * figures["critical_ratio"]
    else:
        assert {**figures, "seconds": 0} == {**still, "seconds": 0}


def test_all_policies_are_compared(cli, lengths):
    table = cli("simulate", "--lengths", lengths)
    assert table.exit_code == 0
    assert all(policy in table.stdout for policy in POLICIES)
    rows = json.loads(cli("simulate", "--lengths", lengths, "--policy", "all", "--json").stdout)
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(str(row["steps"]) in table.stdout for row in rows)


SETTINGS = {
    "budget": ("--token-budget", "0"),
    "window": ("--window", "0"),
    "lookahead": ("--lookahead", "-3"),
    "batch_size": ("--batch-size", "0"),
    "world_size": ("--world-size", "0"),
    "pad_to_multiple_of": ("--pad-to-multiple-of", "0"),
    "pad_to_multiple_of ": ("--pad-to-multiple-of", "20000"),
    "--shares": ("--shares", "1,x"),
    "--shares ": ("--shares", "1,nan"),
    "shares": ("--shares", "1,2", "--world-size", "3"),
    "share": ("--shares", "1,-1"),
}


@pytest.mark.parametrize(("name", "options"), SETTINGS.items(), ids=map(" ".join, SETTINGS.values()))
def test_a_setting_out_of_range_is_named_with_its_value(refuses, lengths, name, options):
    line = refuses("simulate", "--lengths", lengths, *options, code=2)
    assert name.strip() in line
    assert options[1].split(",")[-1] in line


ARRAYS = {
    "zero length": (np.array([3, 0, 2]), "entry 1 is 0"),
    "negative length": (np.array([3, 4, -2]), "entry 2 is -2"),
    "empty": (np.array([], dtype=np.int64), "empty"),
    "floats": (np.array([1.5]), "float64"),
    "two dimensions": (np.array([[1, 2]]), "(1, 2)"),
    "pickled": (np.array([{"length": 3}], dtype=object), "not an array of numbers"),
}


@pytest.mark.parametrize(("array", "message"), ARRAYS.values(), ids=ARRAYS)
def test_an_array_without_lengths_is_refused(refuses, tmp_path, array, message):
    path = tmp_path / "bad.npy"
    np.save(path, array, allow_pickle=True)
    line = refuses("simulate", "--lengths", path, code=2)
    assert message in line
    assert str(path) in line


def test_a_file_without_an_array_is_refused(refuses, tmp_path):
    text, several, nothing = tmp_path / "text.npy", tmp_path / "several.npz", tmp_path / "nothing.npy"
    text.write_text("1, 2, 3")
    np.savez(several, a=LENGTHS, b=LENGTHS)
    nothing.write_bytes(b"")
    for path in (text, several, nothing, tmp_path / "gone.npy", tmp_path):
        assert str(path) in refuses("simulate", "--lengths", path, code=2)
