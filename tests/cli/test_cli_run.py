"""The command run: streaming and training, its report, what a terminal shows, and how bad data and settings end."""

import json

import pytest
import torch
from cli_support import CHAT_RECIPE, CHATS, NUMBERS_RECIPE, odb_stream, write_jsonl
from live_support import scalars_in
from make_tars import write_tar_file
from terminal_support import SHOWN, on_a_terminal
from tokenizers import Tokenizer

from odb_stream.cli.recipes import build_pipeline
from odb_stream.cli.run import report_table, vocabulary

PLAN = "rank 0 of 1 reads 60 samples in 3 shards, split by their indexes\n"


def report_of(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_chat_is_emitted_once_and_the_report_is_printed_and_written(cli, chat_recipe, tmp_path):
    path = tmp_path / "report.json"
    result = cli("run", chat_recipe, "--budget", 512, "--report", path, "--json")
    report = report_of(result)
    assert (report["emitted"], report["dropped"], report["abandoned"]) == (60, {}, 0)
    assert report["global"]["emitted"] == 60
    assert set(report["wait_seconds"]) >= {"trainer", "workers"}
    assert "loss" not in report
    assert json.loads(path.read_text()) == report
    assert result.stderr == PLAN


def test_without_json_the_report_is_a_table(cli, chat_recipe):
    result = cli("run", chat_recipe, "--budget", 512)
    assert (result.exit_code, result.stderr) == (0, PLAN)
    assert "emitted" in result.stdout
    assert "wait seconds: trainer" in result.stdout
    assert "global" not in result.stdout


def test_steps_and_epochs_limit_the_run(cli, recipe):
    path = recipe(NUMBERS_RECIPE)
    one = report_of(cli("run", path, "--budget", 40, "--json"))
    assert (one["emitted"], one["dropped"], one["abandoned"]) == (45, {"every_tenth": 5}, 0)
    steps = one["steps"]
    part = report_of(cli("run", path, "--budget", 40, "--steps", 3, "--json"))
    assert part["steps"] == 3
    assert part["emitted"] + part["abandoned"] + sum(part["dropped"].values()) == 50
    over = report_of(cli("run", path, "--budget", 40, "--steps", steps + 2, "--json"))
    assert over["steps"] == steps + 2
    assert report_of(cli("run", path, "--budget", 40, "--epochs", 3, "--json"))["emitted"] == 135
    capped = report_of(cli("run", path, "--budget", 40, "--epochs", 1, "--steps", steps + 2, "--json"))
    assert (capped["steps"], capped["emitted"]) == (steps, 45)


def test_the_settings_reach_the_loader(cli, recipe):
    path = recipe(NUMBERS_RECIPE)
    options = ("--token-budget", 60, "--layout", "packed", "--window", 8, "--lookahead", 2, "--seed", 3)
    packed = report_of(cli("run", path, *options, "--json"))
    padded = report_of(cli("run", path, *options, "--layout", "padded", "--json"))
    assert packed["padding_ratio"] == 0 < padded["padding_ratio"]
    assert packed["max_delay"] <= 8
    small = report_of(cli("run", path, "--budget", 10, "--oversize", "drop", "--json"))
    assert small["dropped"]["oversize"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_training_makes_the_loss_fall(cli, chat_recipe, tmp_path, layout):
    def train():
        path = tmp_path / "report.json"
        result = cli(
            "run", chat_recipe, "--train", "--budget", 512, "--layout", layout, "--epochs", 4, "--report", path
        )
        assert result.exit_code == 0, result.output
        assert "loss: first, last" in result.stdout
        return json.loads(path.read_text())

    first = train()
    assert len(first["loss"]) == first["steps"] > 20
    assert first["loss"][0] == pytest.approx(6.0, abs=0.3)  # the logarithm of the vocabulary
    assert sum(first["loss"][-5:]) / 5 < 0.6 * first["loss"][0]
    assert train()["loss"] == pytest.approx(first["loss"], abs=1e-4)


def test_the_vocabulary_is_the_tokenizers_or_else_from_the_first_batch(chat_recipe, recipe, tokenizer_file):
    batch = {"input_ids": torch.tensor([[3, 7], [5, 0]])}
    assert vocabulary(build_pipeline(str(chat_recipe)), batch) == Tokenizer.from_file(tokenizer_file).get_vocab_size()
    assert vocabulary(build_pipeline(str(recipe(NUMBERS_RECIPE))), batch) == 16


def test_training_needs_no_tokenizer(cli, recipe):
    path = recipe(NUMBERS_RECIPE)
    losses = report_of(cli("run", path, "--budget", 400, "--train", "--epochs", 12, "--json"))["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_recipes_own_stage_runs_in_worker_processes(recipe):
    path = recipe(NUMBERS_RECIPE)
    inline, spawned = (odb_stream("run", path, "--budget", 40, "--workers", count, "--json") for count in (0, 2))
    assert (inline.returncode, spawned.returncode, spawned.stderr) == (0, 0, inline.stderr)
    reports = [json.loads(done.stdout) for done in (inline, spawned)]
    assert [report.pop("wait_seconds") is not None for report in reports] == [True, True]
    assert reports[0] == reports[1]
    assert reports[0]["dropped"] == {"every_tenth": 5}


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_one(recipe):
    ends = "def every_tenth(sample):\n    if sample.ref.index == 30:\n        os.kill(os.getpid(), 9)"
    path = recipe("import os\n" + NUMBERS_RECIPE.replace("def every_tenth(sample):", ends))
    done = odb_stream("run", path, "--budget", 40, "--workers", 2)
    assert (done.returncode, done.stdout) == (1, "")
    assert "was killed by SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr


SETTINGS = {
    "--steps is 0": ("--steps", 0),
    "--epochs is -1": ("--epochs", -1),
    "--budget is 0": ("--budget", 0),
    "window is 0": ("--window", 0),
    "lookahead is -2": ("--lookahead", -2),
    "workers is -1": ("--workers", -1),
    "seed is -1": ("--seed", -1),
}


@pytest.mark.parametrize(("message", "options"), SETTINGS.items(), ids=SETTINGS)
def test_a_setting_out_of_range_is_named_with_its_value(refuses, recipe, message, options):
    assert message in refuses("run", recipe(NUMBERS_RECIPE), *options, code=2)


def test_an_unwritable_report_is_refused_before_the_run(refuses, recipe, tmp_path):
    path = recipe("raise AssertionError('the recipe ran')\n")
    assert "is a folder" in refuses("run", path, "--report", tmp_path, code=2)
    assert "no folder" in refuses("run", path, "--report", tmp_path / "gone" / "r.json", code=2)


def test_a_recipe_that_cannot_work_ends_with_two(refuses, recipe, tmp_path):
    assert "has no function build" in refuses("run", recipe("x = 1\n"), code=2)
    assert "does not exist" in refuses("run", tmp_path / "gone.py", code=2)
    assert "no parameter `shards`" in refuses("run", recipe(NUMBERS_RECIPE), "--shards", "a.tar", code=2)


def holds(key, content):
    """Overwrites a shard with one sample of this key and json content."""
    return lambda path: write_tar_file(path, [(f"{key}.json", content)])


VIDEO = b'{"messages": [{"role": "user", "content": [{"type": "video", "video": "0.mp4"}]}]}'
DATA = {
    "cut shard": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "shard-000000.tar"),
    "not a tar": (lambda path: path.write_text("hello " * 999), "shard-000000.tar"),
    "empty shard": (lambda path: path.write_bytes(b""), "shard-000000.tar"),
    "not JSON": (holds("a", b"{oops"), "key 'a'"),
    "messages of the wrong shape": (holds("b", b'{"messages": "hello"}'), "key 'b'"),
    "no role": (holds("c", b'{"messages": [{"content": "x"}]}'), "key 'c'"),
    "a video part": (holds("d", VIDEO), "video"),
}


@pytest.mark.parametrize(("edit", "message"), DATA.values(), ids=DATA)
def test_bad_data_ends_in_one_line_that_names_the_place(refuses, chat_recipe, shards, edit, message):
    bad = shards / "shard-000000.tar"
    edit(bad)
    (shards / "shard-000000.tar.idx.json").unlink()
    line = refuses("run", chat_recipe, code=1)
    assert message in line
    assert str(bad) in line


def test_a_sample_over_the_budget_names_itself_and_the_way_out(refuses, chat_recipe):
    line = refuses("run", chat_recipe, "--budget", 20, code=1)
    assert "tokens, but the budget is 20" in line
    assert "key '" in line


def test_missing_shards_are_named(refuses, chat_recipe, tmp_path):
    assert f"{tmp_path}/gone.tar" in refuses("run", chat_recipe, "--shards", f"{tmp_path}/gone.tar", code=1)
    assert "pipe:" in refuses("run", chat_recipe, "--shards", "pipe:cat x.tar", code=2)


def test_other_shards_are_streamed_when_given(cli, chat_recipe, tmp_path):
    source = write_jsonl(tmp_path / "seven.jsonl", CHATS[:7])
    cli("write", source, tmp_path / "other", "--samples-per-shard", 3)
    report = report_of(cli("run", chat_recipe, "--shards", f"{tmp_path}/other/*.tar", "--json"))
    assert report["emitted"] == 7


TEMPLATES = {
    "no template": ("", "template"),
    "a content that is not rendered": ("{% for message in messages %}{{ message['role'] }}{% endfor %}", "template"),
}


@pytest.mark.parametrize(("template", "message"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_cannot_work_ends_with_two(refuses, recipe, shards, tokenizer_file, template, message):
    text = CHAT_RECIPE.format(template=template, shards=str(shards / "*.tar"), tokenizer=tokenizer_file)
    assert message in refuses("run", recipe(text), code=2)


def test_a_run_in_which_everything_is_dropped_fails(refuses, recipe):
    path = recipe(NUMBERS_RECIPE.replace("sample.ref.index % 10 == 0", "True"))
    assert "all 50 samples were dropped" in refuses("run", path, code=1)


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
    options = ("--budget", 40, "--tensorboard", tmp_path / "runs", "--json")
    report = report_of(cli("run", recipe(NUMBERS_RECIPE), *options))
    assert scalars_in(tmp_path / "runs")["odb_stream/dropped/every_tenth"][-1] == (report["steps"], 5.0)


def test_long_work_has_a_progress_bar_watched(chats, tmp_path):
    code, out, drawn = watched("write", chats, tmp_path / "out", "--samples-per-shard", 10)
    assert code == 0
    assert "writing" in drawn
    assert "100%" in drawn
    assert "60 samples in 6 shards" in out
