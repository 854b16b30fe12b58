"""The commands index, check and write on a bucket, with the endpoint as an option and the keys in the environment."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from s3_server import BUCKET, FULL, READER, S3Server
from typer.testing import CliRunner

from odb_stream import storage
from odb_stream.cli.main import app

CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"number {n}"}]}) + "\n" for n in range(25))


class Commands:
    """Runs commands against the server with one key."""

    def __init__(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._endpoint = endpoint
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: object, key: tuple[str, str] = FULL) -> Result:
        self._monkeypatch.setenv("AWS_ACCESS_KEY_ID", key[0])
        self._monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key[1])
        # A client is kept for equal settings, with the keys that were in the environment when it was made.
        storage.forget_clients()
        return CliRunner().invoke(app, [*map(str, arguments), "--endpoint", self._endpoint])


@pytest.fixture
def command(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return Commands(s3.endpoint, monkeypatch)


def test_write_index_and_check_in_a_bucket(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(CHATS)
    folder = f"s3://{BUCKET}/cli"
    written = command("write", tmp_path / "chats.jsonl", folder, "--samples-per-shard", 10, "--no-index", "--json")
    assert written.exit_code == 0, written.output
    assert [shard["samples"] for shard in json.loads(written.stdout)["shards"]] == [10, 10, 5]
    indexed = command("index", f"{folder}/shard-*.tar", "--json")
    assert indexed.exit_code == 0, indexed.output
    assert json.loads(indexed.stdout)["shards"][2]["index"] == f"{folder}/shard-000002.tar.idx.json"
    checked = command("check", f"{folder}/shard-{{000000..000002}}.tar", "--json", key=READER)
    assert checked.exit_code == 0, checked.output
    report = json.loads(checked.stdout)
    assert (report["good"], report["samples"]) == (True, 25)
    assert {shard["index"] for shard in report["shards"]} == {"good"}


def test_the_input_may_be_in_a_bucket(command: Commands, s3: S3Server, tmp_path: Path) -> None:
    storage.write_atomic(f"s3://{BUCKET}/in/chats.jsonl", CHATS.encode(), s3.options())
    result = command("write", f"s3://{BUCKET}/in/chats.jsonl", tmp_path / "out", "--samples-per-shard", 100)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "shard-000000.tar",
        "shard-000000.tar.idx.json",
    ]


def test_refusals_are_one_line(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(CHATS)
    folder = f"s3://{BUCKET}/refused"
    arguments = ("write", tmp_path / "chats.jsonl", folder, "--samples-per-shard", 10)
    denied = command(*arguments, key=READER)
    assert denied.exit_code == 1
    assert f"error: {folder}/shard-000000.tar" in denied.stderr
    assert "do not allow writing" in denied.stderr
    anonymous = command("check", f"{folder}/a.tar", "--anonymous")
    assert anonymous.exit_code == 1
    assert "leave out Storage.anonymous" in anonymous.output.replace("\n", " ")
    served = command("index", "http://127.0.0.1:1/{a,b}.tar")
    assert served.exit_code == 2
    assert "can only be read" in served.stderr
    for refused in ("pipe:cat x.tar", "cat x.tar |"):
        assert command("check", refused).exit_code == 2
