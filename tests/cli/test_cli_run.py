"""The command run: streaming and training, its report, what a terminal shows, and how bad settings end."""

import json

import pytest
import torch
from cli_support import CHAT_RECIPE, CHATS, NUMBERS_RECIPE, odb_stream, write_jsonl
from live_support import scalars_in
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
    table = cli("run", chat_recipe, "--budget", 512)
    assert result.stderr == table.stderr == PLAN
    assert table.exit_code == 0
    assert "emitted" in table.stdout
    assert "wait seconds: trainer" in table.stdout
    assert "global" not in table.stdout


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


def test_training_needs_no_tokenizer_and_writes_for_tensorboard(cli, recipe, tmp_path):
    options = ("--train", "--budget", 400, "--epochs", 12, "--tensorboard", tmp_path / "runs", "--json")
    report = report_of(cli("run", recipe(NUMBERS_RECIPE), *options))
    assert report["loss"][-1] < report["loss"][0]
    assert scalars_in(tmp_path / "runs")["odb_stream/dropped/every_tenth"][-1] == (report["steps"], 60.0)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_one(recipe):
    ends = "def every_tenth(sample):\n    if sample.ref.index == 30:\n        os.kill(os.getpid(), 9)"
    path = recipe("import os\n" + NUMBERS_RECIPE.replace("def every_tenth(sample):", ends))
    done = odb_stream("run", path, "--budget", 40, "--workers", 2)
    assert (done.returncode, done.stdout) == (1, "")
    assert "was killed by SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr


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
    assert "has no function build" in refuses("run", recipe("x = 1\n"), code=2)


REPORT = {"emitted": 200, "dropped": {"too_long": 3}, "padding_ratio": 0.375, "wait_seconds": {"trainer": 1.25}}


def cells(table):
    names, values = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, values, strict=True))


def test_the_table_of_a_report_has_global_figures_only_if_they_differ():
    assert cells(report_table("report", REPORT)) == {
        "emitted": "200",
        "dropped: too_long": "3",
        "padding ratio": "37.50%",
        "wait seconds: trainer": "1.250",
    }
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


def test_long_work_has_a_progress_bar_watched(chats, tmp_path):
    code, out, drawn = watched("write", chats, tmp_path / "out", "--samples-per-shard", 10)
    assert code == 0
    assert "writing" in drawn
    assert "100%" in drawn
    assert "60 samples in 6 shards" in out
