"""The program as a whole: help, exit codes, errors in one line, Ctrl-C, and a quick start."""

import json
import os
import signal
import subprocess
import sys
from inspect import signature

import pytest
from cli_support import FAILS, NUMBERS_RECIPE, odb_stream
from waiting import PATIENCE

from odb_stream.cli import inspect, run, simulate

COMMANDS = ("write", "index", "check", "run", "inspect", "simulate", "state")


def test_the_help_lists_the_commands_and_the_exit_codes_and_each_has_an_example(cli):
    result = cli("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)
    assert "Exit codes: 0 fine; 1 " in result.stdout
    for command in COMMANDS:
        result = cli(command, "--help")
        assert result.exit_code == 0
        assert f"Example: odb-stream {command}" in result.stdout


def test_the_help_and_the_live_view_need_no_heavy_library():
    heavy = {"torch", "torchdata", "transformers", "numpy", "webdataset", "obstore", "tokenizers", "tensorboard"}
    script = f"import sys, odb_stream.live, odb_stream.cli.main; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.strip() == "[]"


def test_the_version_is_printed(cli):
    result = cli("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "odb-stream")


@pytest.mark.parametrize(
    "arguments",
    [("fly",), ("run",), ("simulate", "--lengths", "a.npy", "--policy", "best"), ("write", "a", "b")],
    ids=["unknown command", "no recipe", "unknown policy", "no samples per shard"],
)
def test_wrong_usage_ends_with_two(cli, arguments):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize("debug", [(), ("--debug",)], ids=["plain", "debug"])
def test_an_error_is_one_line_and_with_debug_a_traceback_before_it(cli, tmp_path, debug):
    done = cli(*debug, "index", tmp_path / "gone.tar")
    assert (done.exit_code, done.stdout) == (1, "")
    before, _, line = done.stderr.rpartition("error: ")
    assert line == f"{tmp_path}/gone.tar: no such file; check the address\n"
    assert before.startswith("Traceback") if debug else before == ""


def test_a_folder_that_cannot_be_created_is_an_error_in_words(refuses, chats, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert str(tmp_path / "file") in refuses("write", chats, tmp_path / "file", "--samples-per-shard", 5, code=1)


@pytest.mark.parametrize(("command", "option"), [("run", "--report"), ("inspect", "--png"), ("inspect", "--html")])
def test_an_unwritable_file_is_refused_before_the_run(refuses, recipe, tmp_path, command, option):
    path = recipe(FAILS)
    assert "is a folder" in refuses(command, path, option, tmp_path, code=2)
    assert "no folder" in refuses(command, path, option, tmp_path / "gone" / "file", code=2)


WRONG = [
    ("run", "--steps is 0", ("--steps", 0)),
    ("run", "--epochs is -1", ("--epochs", -1)),
    ("run", "--budget is 0", ("--budget", 0)),
    ("run", "window is 0", ("--window", 0)),
    ("run", "lookahead is -2", ("--lookahead", -2)),
    ("run", "workers is -1", ("--workers", -1)),
    ("run", "seed is -1", ("--seed", -1)),
    ("inspect", "--samples is 'some'", ("--samples", "some")),
    ("inspect", "--samples is '-1'", ("--samples", "-1")),
    ("inspect", "--budget is 0", ("--budget", 0)),
    ("inspect", "window is 0", ("--window", 0)),
    ("inspect", "world_size is 0", ("--world-size", 0)),
    ("inspect", "workers is -1", ("--workers", -1)),
    ("inspect", "--memory is 'much'", ("--memory", "much", "--token-bytes", 5)),
    ("inspect", "--host-memory is 'much'", ("--host-memory", "much")),
    ("inspect", "--model was given without --memory", ("--model", "config.json")),
    ("inspect", "--token-bytes was given without --memory", ("--token-bytes", 5)),
    ("inspect", "give the model's config.json", ("--memory", "1GiB")),
    ("inspect", "gone.json cannot be read", ("--memory", "1GiB", "--model", "gone.json")),
]


@pytest.mark.parametrize(("command", "message", "options"), WRONG, ids=str)
def test_a_setting_out_of_range_is_named_with_its_value(refuses, recipe, command, message, options):
    assert message in refuses(command, recipe(NUMBERS_RECIPE), *options, code=2)


def test_a_recipe_without_samples_is_an_error_with_its_cause(refuses, recipe):
    dropping = recipe(NUMBERS_RECIPE.replace("sample.ref.index % 10 == 0", "True"))
    assert "all 50 samples were dropped" in refuses("run", dropping, code=1)
    assert "all 50 samples read were dropped (every_tenth: 50" in refuses("inspect", dropping, code=1)
    assert "contains no sample" in refuses("inspect", recipe(NUMBERS_RECIPE.replace("return 50", "return 0")), code=2)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "times"), [("run", "wait_seconds"), ("inspect", "times")])
def test_a_recipes_own_stage_runs_in_worker_processes(recipe, command, times):
    path = recipe(NUMBERS_RECIPE)
    done = [odb_stream(command, path, "--budget", 40, "--workers", count, "--json") for count in (0, 2)]
    assert [one.returncode for one in done] == [0, 0]
    assert done[0].stderr == done[1].stderr
    assert '{"every_tenth": 5}' in done[0].stdout
    here, there = (json.loads(one.stdout) for one in done)
    assert len(here.pop(times)) == len(there.pop(times)) > 0
    assert here == there


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_control_c_ends_with_130_and_one_line(recipe, workers):
    # One write per line: an unbuffered `print` makes two, and the lines of two workers would mix.
    going = "def every_tenth(sample):\n    os.write(1, b'going\\n')"
    endless = recipe("import os\n" + NUMBERS_RECIPE.replace("def every_tenth(sample):", going))
    command = [sys.executable, "-m", "odb_stream.cli.main", "run", str(endless), "--epochs", "100000000"]
    with subprocess.Popen(
        [*command, "--workers", str(workers), "--budget", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "going\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    spoken = [line for line in err.splitlines() if not line.startswith("dropped ")]
    assert (process.returncode, spoken) == (130, ["rank 0 of 1 reads its part of a dataset", "interrupted"])
    assert set(out.splitlines()) <= {"going"}


def test_the_commands_have_the_defaults_of_what_they_call():
    """Fails with: a default that was changed in one place only."""
    from odb_stream import inspection
    from odb_stream.batching.simulate import figures
    from odb_stream.loader import Loader

    calls = ((run.run, Loader), (inspect.inspect, inspection.inspect), (simulate.simulate, figures.simulate))
    for command, function in calls:
        ours, theirs = signature(command).parameters, signature(function).parameters
        shared = ours.keys() & theirs.keys() - {"budget", "policy"}
        given = {name: ours[name].default for name in shared if isinstance(theirs[name].default, int | str)}
        expected = {name: theirs[name].default for name in given}
        if command is inspect.inspect:  # given as text
            given["samples"] = int(given["samples"])
            given["host_memory"] = inspection.parse_bytes("--host-memory", given["host_memory"])
        assert len(given) >= 4
        assert given == expected
