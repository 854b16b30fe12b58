"""What is drawn while a command runs: only on a terminal, and only then."""

import os
import pty
import subprocess
import sys

import pytest
from cli_support import NUMBERS_RECIPE, SECONDS

from odb_stream.cli.live import LiveTable, live_table, report_table

REPORT = {
    "emitted": 200,
    "dropped": {"too_long": 3},
    "steps": 12,
    "tokens": 5000,
    "padded_tokens": 8000,
    "padding_ratio": 0.375,
    "real_utilisation": 0.5,
    "wait_seconds": {"trainer": 1.25},
}


def cells(table):
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_the_live_table_shows_rates_ratios_drops_and_waits():
    shown = cells(live_table("run", REPORT, seconds=4.0, loss=2.5))
    assert shown == {
        "samples/s": "50",
        "real tokens/s": "1,250",
        "padded tokens/s": "2,000",
        "padding": "37.50%",
        "utilisation": "50.00%",
        "steps": "12",
        "samples": "200",
        "loss": "2.5000",
        "dropped: too_long": "3",
        "waited: trainer": "1.2 s",
        "time": "4.0 s",
    }
    assert "loss" not in cells(live_table("run", REPORT, seconds=0.0, loss=None))


def test_the_report_shows_global_figures_only_where_they_differ():
    same = cells(report_table("report", {**REPORT, "global": {"emitted": 200}, "loss": [3.0, 2.0]}))
    assert same["loss: first, last"] == "3.0000, 2.0000"
    assert not [name for name in same if name.startswith("global")]
    assert cells(report_table("report", {**REPORT, "global": {"emitted": 400}}))["global: emitted"] == "400"


def test_nothing_is_drawn_when_nobody_watches(capsys):
    with LiveTable("run") as live:
        assert not live.due
        live.draw(REPORT)
    assert capsys.readouterr() == ("", "")


def on_a_terminal(*arguments):
    """Run the program with standard error on a terminal; gives the exit code, standard output and the drawing."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "odb_stream.cli.main", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 4096):
                drawn += part
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
        out, _ = process.communicate(timeout=SECONDS)
    return process.returncode, out, drawn.decode()


@pytest.mark.slow
def test_a_run_on_a_terminal_draws_a_live_table_unless_json_is_asked_for(recipe):
    path = recipe(NUMBERS_RECIPE)
    code, out, drawn = on_a_terminal("run", path, "--budget", 40)
    assert code == 0
    assert "real tokens/s" in drawn
    assert "every_tenth" in drawn
    assert "wait seconds: trainer" in out
    code, out, drawn = on_a_terminal("run", path, "--budget", 40, "--json")
    assert code == 0
    plan, log = drawn.splitlines()
    assert plan == "rank 0 of 1 reads its part of a dataset"
    assert log.startswith("dropped dataset Numbers")
    assert out.startswith("{")


def test_long_work_has_a_progress_bar_on_a_terminal(chats, tmp_path):
    code, out, drawn = on_a_terminal("write", chats, tmp_path / "out", "--samples-per-shard", 10)
    assert code == 0
    assert "writing" in drawn
    assert "100%" in drawn
    assert "60 samples in 6 shards" in out
