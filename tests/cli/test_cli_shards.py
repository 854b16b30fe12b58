"""The commands write, index and check on good and on damaged shards, in a folder and in a bucket."""

import json
import tarfile

import pytest
from cli_support import CHATS, write_jsonl
from make_tars import write_tar_file
from s3_server import BUCKET, FULL, READER

from odb_stream import storage

CHAT = json.dumps(CHATS[0]).encode()


def test_lines_become_shards_with_indexes_that_a_check_finds_sound(cli, shards, chats):
    assert sorted(path.name for path in shards.iterdir()) == [
        f"shard-00000{number}.tar{suffix}" for number in range(3) for suffix in ("", ".idx.json")
    ]
    result = cli("check", f"{shards}/shard-{{000000..000002}}.tar", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["good"], found["samples"]) == (0, True, 60)
    assert [(shard["samples"], shard["index"]) for shard in found["shards"]] == [
        (25, "good"),
        (25, "good"),
        (10, "good"),
    ]
    members = [
        json.loads(tar.extractfile(member).read())
        for tar in map(tarfile.open, sorted(shards.glob("*.tar")))
        for member in tar
    ]
    assert members == CHATS


def test_write_says_what_it_wrote(cli, chats, tmp_path):
    options = ("--samples-per-shard", 40, "--prefix", "chat", "--no-index")
    written = json.loads(cli("write", chats, tmp_path / "a", *options, "--json").stdout)
    assert written["samples"] == 60
    assert [(shard["address"], shard["samples"]) for shard in written["shards"]] == [
        (f"{tmp_path}/a/chat-000000.tar", 40),
        (f"{tmp_path}/a/chat-000001.tar", 20),
    ]
    assert not list((tmp_path / "a").glob("*.idx.json"))
    table = cli("write", chats, tmp_path / "b", *options)
    assert "60 samples in 2 shards" in table.stdout
    assert table.stderr == ""


def test_index_writes_beside_each_shard(cli, shards):
    before = {path: path.read_bytes() for path in shards.glob("*.idx.json")}
    for path in before:
        path.unlink()
    result = json.loads(cli("index", shards / "*.tar", "--json").stdout)
    assert result["samples"] == 60
    assert {path: path.read_bytes() for path in shards.glob("*.idx.json")} == before
    assert "60 samples in 3 shards" in cli("index", shards / "*.tar").stdout


def test_existing_shards_are_overwritten_only_on_request(cli, refuses, chats, shards):
    assert "overwrite" in refuses("write", chats, shards, "--samples-per-shard", 5, code=2)
    assert cli("write", chats, shards, "--samples-per-shard", 60, "--overwrite").exit_code == 0
    assert [path.name for path in sorted(shards.iterdir())] == ["shard-000000.tar", "shard-000000.tar.idx.json"]


LINES = {"not JSON": "{nonsense", "no object": "[1, 2]"}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_is_not_a_sample_is_named(refuses, tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(CHATS[0]) + "\n\n" + line + "\n")
    assert f"{path}, line 3" in refuses("write", path, tmp_path / "out", "--samples-per-shard", 1, code=1)
    assert not list((tmp_path / "out").glob("*.tar"))


def test_write_refuses_no_input_and_no_size(refuses, tmp_path, chats):
    gone, empty = tmp_path / "gone.jsonl", write_jsonl(tmp_path / "empty.jsonl", [])
    assert str(gone) in refuses("write", gone, tmp_path / "out", "--samples-per-shard", 1, code=1)
    assert "empty" in refuses("write", empty, tmp_path / "out", "--samples-per-shard", 1, code=2)
    assert "samples_per_shard is 0" in refuses("write", chats, tmp_path / "out", "--samples-per-shard", 0, code=2)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def holds(*members):
    return lambda path: write_tar_file(path, members)


VIDEO = b'{"messages": [{"role": "user", "content": [{"type": "video", "video": "0.mp4"}]}]}'
DAMAGE = {
    "cut": (cut, "it was cut"),
    "empty file": (lambda path: path.write_bytes(b""), "the file is empty"),
    "not a tar": (lambda path: path.write_text("hello " * 999), "not a tar file"),
    "repeated key": (holds(("a.json", CHAT), ("b.json", CHAT), ("a.txt", b"again")), "key 'a'"),
    "not JSON": (holds(("a.json", b"{oops")), "key 'a'"),
    "messages of the wrong shape": (holds(("b.json", b'{"messages": "hello"}')), "key 'b'"),
    "no role": (holds(("c.json", b'{"messages": [{"content": "x"}]}')), "key 'c'"),
    "no key": (holds((".json", CHAT)), "no key"),
    "pickle": (holds(("a.pkl", b"x")), "pickle"),
    "no sample": (holds(), "no sample"),
    "a video part, which only ChatTemplate refuses": (holds(("d.json", VIDEO)), "video"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_shard_ends_a_run_and_is_found_by_check(cli, refuses, chat_recipe, shards, damage, message):
    """One line names the place in a run; check reads the other shards too."""
    bad = shards / "shard-000001.tar"
    damage(bad)
    (shards / "shard-000001.tar.idx.json").unlink()
    line = refuses("run", chat_recipe, code=1)
    assert message in line
    assert str(bad) in line
    found = json.loads(cli("check", shards / "*.tar", "--json").stdout)
    table = cli("check", shards / "*.tar")
    assert "Traceback" not in table.output
    is_good = message == "video"
    assert (found["good"], table.exit_code) == (is_good, 0 if is_good else 1)
    assert [shard["good"] for shard in found["shards"]] == [True, is_good, True]
    for problem in found["shards"][1]["problems"]:
        assert str(bad) in problem
        assert f"problem: {problem}\n" in table.stdout


def test_check_finds_a_stale_index_and_a_missing_shard(cli, shards):
    write_tar_file(shards / "shard-000000.tar", [("a.json", CHAT)])
    result = cli("check", shards / "shard-{000000..000003}.tar", "--json")
    assert result.exit_code == 1
    found = {shard["address"]: shard for shard in json.loads(result.stdout)["shards"]}
    assert found[f"{shards}/shard-000000.tar"]["index"] == "bad"
    assert found[f"{shards}/shard-000002.tar"]["good"]
    assert "no such file" in found[f"{shards}/shard-000003.tar"]["problems"][0]


def test_a_damaged_shard_gets_no_index(refuses, shards):
    bad = shards / "shard-000001.tar"
    cut(bad)
    (shards / "shard-000001.tar.idx.json").unlink()
    assert str(bad) in refuses("index", bad, code=1)
    assert not (shards / "shard-000001.tar.idx.json").exists()


@pytest.mark.parametrize("command", ["index", "check"])
def test_a_command_as_address_is_refused(refuses, command):
    assert "pipe:" in refuses(command, "pipe:cat a.tar", code=2)


def test_brackets_in_a_name_are_printed_literally(cli, chats, tmp_path):
    result = cli("write", chats, tmp_path / "[red]x", "--samples-per-shard", 60)
    assert f"{tmp_path}/[red]x/shard-000000.tar" in result.stdout


@pytest.fixture
def command(cli, s3, monkeypatch):
    """Runs a command against the server, with a key from the environment."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def run(*arguments, key=FULL):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key[1])
        # A client is kept for equal settings, with the keys that were in the environment when it was made.
        storage.forget_clients()
        return cli(*arguments, "--endpoint", s3.endpoint)

    return run


def test_write_index_and_check_in_a_bucket(command, chats, s3):
    folder, lines = f"s3://{BUCKET}/cli", f"s3://{BUCKET}/in/chats.jsonl"
    storage.write_atomic(lines, chats.read_bytes(), s3.options())
    written = command("write", lines, folder, "--samples-per-shard", 25, "--no-index", "--json")
    assert written.exit_code == 0, written.output
    assert [shard["samples"] for shard in json.loads(written.stdout)["shards"]] == [25, 25, 10]
    indexed = command("index", f"{folder}/shard-*.tar", "--json")
    assert indexed.exit_code == 0, indexed.output
    assert json.loads(indexed.stdout)["shards"][2]["index"] == f"{folder}/shard-000002.tar.idx.json"
    checked = command("check", f"{folder}/shard-{{000000..000002}}.tar", "--json", key=READER)
    assert checked.exit_code == 0, checked.output
    report = json.loads(checked.stdout)
    assert (report["good"], report["samples"]) == (True, 60)
    assert {shard["index"] for shard in report["shards"]} == {"good"}


def test_refusals_in_a_bucket_are_one_line(command, chats):
    folder = f"s3://{BUCKET}/refused"
    arguments = ("write", chats, folder, "--samples-per-shard", 25)
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
