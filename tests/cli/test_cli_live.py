"""What is drawn while a command runs, on a terminal only, and the report at its end."""

import json

import pytest
from cli_support import NUMBERS_RECIPE
from terminal_support import SHOWN, on_a_terminal

from odb_stream.cli.run import report_table

REPORT = {"emitted": 200, "dropped": {"too_long": 3}, "padding_ratio": 0.375, "wait_seconds": {"trainer": 1.25}}


def cells(table):
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_the_report_is_a_table_of_its_figures():
    assert cells(report_table("report", REPORT)) == {
        "emitted": "200",
        "dropped: too_long": "3",
        "padding ratio": "37.50%",
        "wait seconds: trainer": "1.250",
    }


def test_the_report_shows_global_figures_only_if_they_differ():
    same = cells(report_table("report", {**REPORT, "global": {"emitted": 200}, "loss": [3.0, 2.0]}))
    assert same["loss: first, last"] == "3.0000, 2.0000"
    assert not [name for name in same if name.startswith("global")]
    assert cells(report_table("report", {**REPORT, "global": {"emitted": 400}}))["global: emitted"] == "400"


def watched(*arguments):
    """Runs the program with standard error on a terminal; gives the exit code, standard output and the drawing."""
    return on_a_terminal("-m", "odb_stream.cli.main", *arguments)


@pytest.mark.slow
def test_a_run_on_a_terminal_draws_a_live_table_unless_json_is_asked_for(recipe):
    path = recipe(NUMBERS_RECIPE)
    code, out, drawn = watched("run", path, "--budget", 40)
    assert code == 0
    assert "real tokens/s" in drawn
    assert "every_tenth" in drawn
    assert drawn.rstrip().endswith(SHOWN)
    assert "wait seconds: trainer" in out
    code, out, drawn = watched("run", path, "--budget", 40, "--json")
    assert code == 0
    plan, log = drawn.splitlines()
    assert plan == "rank 0 of 1 reads its part of a dataset"
    assert log.startswith("dropped dataset Numbers")
    assert out.startswith("{")


def test_the_figures_of_a_run_are_written_for_tensorboard(cli, recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = cli("run", recipe(NUMBERS_RECIPE), "--budget", 40, "--tensorboard", tmp_path / "runs", "--json")
    assert result.exit_code == 0, result.output
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    steps = json.loads(result.stdout)["steps"]
    (last,) = events.Scalars("odb_stream/dropped/every_tenth")[-1:]
    assert (last.step, last.value) == (steps, 5.0)


def test_a_tensorboard_folder_that_is_a_file_is_refused(refuses, recipe, tmp_path):
    (tmp_path / "file").write_text("")
    line = refuses("run", recipe(NUMBERS_RECIPE), "--tensorboard", tmp_path / "file", code=2)
    assert "no event file can be written" in line


def test_long_work_has_a_progress_bar_watched(chats, tmp_path):
    code, out, drawn = watched("write", chats, tmp_path / "out", "--samples-per-shard", 10)
    assert code == 0
    assert "writing" in drawn
    assert "100%" in drawn
    assert "60 samples in 6 shards" in out
