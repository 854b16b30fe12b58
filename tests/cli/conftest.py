"""Fixtures of the command line's tests."""

import itertools
import sys
from pathlib import Path

import pytest
from chat_templates import CHATML
from cli_support import CHAT_RECIPE, CHATS, write_jsonl
from stage_samples import byte_level
from typer.testing import CliRunner

from odb_stream.cli.main import app

numbers = itertools.count()


@pytest.fixture
def cli():
    """Runs a command in this process."""

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def refuses(cli):
    """Runs a command that must end in one clear error line, and gives that line."""

    def run(*arguments, code):
        result = cli(*arguments)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, result.output
        assert "Traceback" not in result.output
        return lines[0]

    return run


@pytest.fixture
def chats(tmp_path):
    return write_jsonl(tmp_path / "chats.jsonl", CHATS)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE trained on the chats."""
    words = " ".join(message["content"] for chat in CHATS for message in chat["messages"])
    tokenizer = byte_level(words, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 400)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Writes a recipe under a module name that no other test uses; the import path and modules are put back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = []

    def write(text, name=None):
        path = tmp_path / f"{name or f'recipe_of_test_{next(numbers)}'}.py"
        path.write_text(text, encoding="utf-8")
        written.append(path.stem)
        return path

    yield write
    for name in written:
        if str(tmp_path) in str(getattr(sys.modules.get(name), "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def shards(cli, chats, tmp_path) -> Path:
    """The chats in three shards with indexes; gives their folder."""
    folder = tmp_path / "shards"
    result = cli("write", chats, folder, "--samples-per-shard", 25)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def chat_recipe(recipe, shards, tokenizer_file) -> Path:
    return recipe(CHAT_RECIPE.format(template=CHATML, shards=str(shards / "shard-*.tar"), tokenizer=tokenizer_file))
