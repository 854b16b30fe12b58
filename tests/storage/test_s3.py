"""Reading, listing and writing on a real S3-compatible server, and what each refusal says."""

import os
import random
from collections.abc import Callable

import pytest
from http_server import Fault, FaultyServer
from s3_server import BUCKET, FULL, READER, S3Server
from storage_support import everything_said, nothing_fetches

from odb_stream import storage
from odb_stream.errors import ConfigError, ShardError
from odb_stream.shards import index
from odb_stream.shards.reader import build_index, read_samples
from odb_stream.shards.writer import write_shards
from odb_stream.storage.options import Storage

DATA = random.Random(6).randbytes(20_000_000)
ROOT = f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def full(s3: S3Server) -> Storage:
    """Settings with the key that may do everything; one large object is there."""
    options = s3.options()
    storage.write_atomic(f"{ROOT}/big.bin", DATA, options)
    return options


@pytest.mark.parametrize("offset", [0, 1, 12_345_678, len(DATA) - 1, len(DATA)])
def test_streams_and_ranges(full: Storage, offset: int) -> None:
    with storage.open_stream(f"{ROOT}/big.bin", offset, full) as stream:
        assert stream.read() == DATA[offset:]
    assert storage.read_if_there(f"{ROOT}/big.bin", full, length=offset + 1) == DATA[: offset + 1]
    assert storage.size(f"{ROOT}/big.bin", full) == len(DATA)
    nothing_fetches()


def test_what_is_missing_is_named(s3: S3Server, full: Storage) -> None:
    def requests(address: str) -> list[Callable[[], object]]:
        return [
            lambda: storage.open_stream(address, 0, full),
            lambda: storage.open_stream(address, 5, full),
            lambda: storage.size(address, full),
            lambda: storage.expand(address, full),
            lambda: list(read_samples(address, options=full)),
        ]

    with pytest.raises(ShardError, match=r"s3://shards/big\.bin .*20000001 lies beyond the end: the size is 20000000"):
        storage.open_stream(f"{ROOT}/big.bin", len(DATA) + 1, full)
    for address, words in (
        (f"{ROOT}/none.tar", "there is no such object in the bucket 'shards'"),
        ("s3://no-such-bucket/a.tar", "there is no .*bucket 'no-such-bucket'"),
    ):
        for request in requests(address):
            with pytest.raises(ShardError, match=f"{address}: {words}"):
                request()
    with pytest.raises(ShardError, match=r"cannot be written|there is no bucket 'no-such-bucket'"):
        storage.write_atomic("s3://no-such-bucket/a.tar", b"x", full)
    assert not storage.exists(f"{ROOT}/none.tar", full)
    assert storage.exists(f"{ROOT}/big.bin", full)
    assert storage.read_if_there(f"{ROOT}/none.tar", full) is None
    for folder in (f"{ROOT}/", ROOT, f"{ROOT}/folder/"):
        with pytest.raises(ShardError, match=r"is a folder; name its files, for example s3://shards(/folder)?/\*\.tar"):
            storage.expand(folder, full)


def test_refusals_say_which_setting_to_look_at(s3: S3Server, full: Storage) -> None:
    address = f"{ROOT}/big.bin"
    cases = {
        s3.options(("wrong-key-id", FULL[1])): "no such key: check Storage.access_key_id or AWS_ACCESS_KEY_ID",
        s3.options((FULL[0], "wrong-secret")): "check Storage.secret_access_key or AWS_SECRET_ACCESS_KEY",
        Storage(endpoint=s3.endpoint, anonymous=True): "without credentials: leave out Storage.anonymous, and give",
    }
    for options, words in cases.items():
        for request in (
            lambda: storage.open_stream(address, 3, options),  # noqa: B023 - called at once
            lambda: storage.size(address, options),  # noqa: B023
            lambda: storage.exists(address, options) or storage.size(address, options),  # noqa: B023
            lambda: storage.expand(f"{ROOT}/*", options),  # noqa: B023
            lambda: storage.write_atomic(f"{ROOT}/new", b"x", options),  # noqa: B023
        ):
            with pytest.raises(ShardError, match=words) as refused:
                request()
            assert "s3://shards" in str(refused.value)
            assert "wrong-secret" not in everything_said(refused.value)
            assert "wrong-key-id" not in everything_said(refused.value)


def test_no_credentials_at_all(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    # Nobody answers where machines of a cloud ask for theirs.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.0.0:1")
    with pytest.raises(ShardError, match=r"there are no credentials: give Storage\.access_key_id .*anonymous=True"):
        storage.size(f"{ROOT}/big.bin", Storage(endpoint=s3.endpoint, retry_seconds=1))


def test_credentials_and_endpoint_from_the_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    # Other settings each time: a client is kept for equal ones.
    with pytest.raises(ShardError, match=r"no encryption: set AWS_ALLOW_HTTP=true, or Storage\.endpoint"):
        storage.size(f"{ROOT}/big.bin", Storage(retry_seconds=11))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert storage.size(f"{ROOT}/big.bin", Storage(retry_seconds=12)) == len(DATA)


def test_a_read_only_key_reads_and_does_not_write(s3: S3Server, full: Storage) -> None:
    reader = s3.options(READER)
    assert storage.size(f"{ROOT}/big.bin", reader) == len(DATA)
    storage.write_atomic(f"{ROOT}/kept", b"kept", full)
    words = r"AccessDenied\)?: these credentials do not allow writing; grant it to them, or give others: Storage\."
    for size in (10, 20_000_000):
        with pytest.raises(ShardError, match=rf"s3://shards/new cannot be written: .*{words}"):
            storage.write_atomic(f"{ROOT}/new", bytes(size), reader)
    with pytest.raises(ShardError, match=rf"s3://shards/kept cannot be deleted: .*{words}"):
        storage.remove(f"{ROOT}/kept", reader)
    assert not storage.exists(f"{ROOT}/new", full)
    assert storage.exists(f"{ROOT}/kept", full)


def test_listing_globs_and_braces(full: Storage) -> None:
    numbered = [f"s-{number}.tar" for number in (0, 1, 2, 10)]
    for name in (*numbered, "sub/s-3.tar", ".s.tar", "s-0.tar.idx.json", "a b[1]?.tar"):
        storage.write_atomic(f"{ROOT}/g/{name}", b"x", full)

    def found(*patterns: str) -> list[str]:
        return [address.removeprefix(f"{ROOT}/g/") for address in storage.expand(patterns, full)]

    assert found(f"{ROOT}/g/s-*.tar") == numbered
    assert found(f"{ROOT}/g/s-?.tar") == numbered[:3]
    assert found(f"{ROOT}/g/s-[1-2].tar") == numbered[1:3]
    assert found(f"{ROOT}/g/**/s-*.tar") == [*numbered, "sub/s-3.tar"]
    assert found(f"{ROOT}/g/*/*.tar") == ["sub/s-3.tar"]
    assert found(f"{ROOT}/g/s-{{0..2}}.tar", f"{ROOT}/g/s-10.tar") == numbered
    assert found(f"{ROOT}/g/a b[1]?.tar") == ["a b[1]?.tar"]
    assert storage.find(f"{ROOT}/g", "s-*.tar", full)[-1] == f"{ROOT}/g/s-10.tar"
    with pytest.raises(ShardError, match=r"s3://shards/g/none\*\.tar: no file matches"):
        found(f"{ROOT}/g/none*.tar")
    with pytest.raises(ShardError, match=r"s3://shards/g/s-3\.tar: there is no such object"):
        found(f"{ROOT}/g/s-{{0..9}}.tar")
    with pytest.raises(ConfigError, match="listed twice"):
        found(f"{ROOT}/g/s-0.tar", f"{ROOT}/g/s-*.tar")


def test_an_object_appears_when_it_is_whole(full: Storage) -> None:
    address = f"{ROOT}/w/large.bin"
    with storage.create(address, full) as stream:
        for start in range(0, len(DATA), 1_000_000):
            stream.write(DATA[start : start + 1_000_000])
        assert stream.tell() == len(DATA)
        assert not storage.exists(address, full)
    with storage.open_stream(address, options=full) as written:
        assert written.read() == DATA
    for size in (0, 100, 20_000_000):
        with pytest.raises(RuntimeError), storage.create(address, full) as stream:  # noqa: PT012 - the writer fails
            stream.write(bytes(size))
            raise RuntimeError
        assert storage.size(address, full) == len(DATA)
    storage.write_atomic(address, b"new", full)
    assert storage.read_if_there(address, full) == b"new"
    storage.remove(address, full)
    storage.remove(address, full)
    assert not storage.exists(address, full)


def write_in_parts(http: FaultyServer, *, fail: bool = False) -> None:
    """An object of three parts; one that fails is tried again for a minute."""
    options = Storage(endpoint=http.url, region="us-east-1", access_key_id="a", secret_access_key="b", retry_seconds=60)
    with storage.create("s3://bucket/k", options) as stream:
        stream.write(bytes(20_000_000))
        if fail:
            raise RuntimeError("given up")


def test_an_upload_goes_in_parts_and_one_that_fails_goes_again(http: FaultyServer) -> None:
    write_in_parts(http)
    assert [seen.method for seen in http.seen] == ["POST", "PUT", "PUT", "PUT", "POST"]
    http.seen.clear()
    http.faults.extend([Fault(), Fault(status=503)])
    write_in_parts(http)
    assert [seen.method for seen in http.seen] == ["POST", "PUT", "PUT", "PUT", "PUT", "POST"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [([], "given up"), ([Fault(), Fault(status=403, body=b"<Code>AccessDenied</Code>")], "do not allow writing")],
    ids=["by its writer", "by the store"],
)
def test_the_parts_of_an_upload_that_fails_are_thrown_away(http: FaultyServer, faults: list[Fault], words: str) -> None:
    http.faults.extend(faults)
    with pytest.raises((RuntimeError, ShardError), match=words):
        write_in_parts(http, fail=not faults)
    # Parts are left out: one that was given up on its way may be seen last.
    requests = [(seen.method, seen.target.partition("?")[2]) for seen in http.seen if seen.method != "PUT"]
    assert requests == [("POST", "uploads="), ("DELETE", "uploadId=parts-1")]


def test_shards_and_sidecars_in_a_bucket(full: Storage) -> None:
    samples = [(f"{number:04d}", {"txt": str(number).encode() * 100}) for number in range(25)]
    written = write_shards(iter(samples), f"{ROOT}/set/", samples_per_shard=10, prefix="t", options=full)
    addresses = storage.expand(f"{ROOT}/set/t-*.tar", full)
    assert [shard.address for shard in written] == list(addresses)
    assert [(one.key, one.members) for at in addresses for one in read_samples(at, options=full)] == samples
    assert index.read_counts(addresses, full) == [None] * 3
    assert index.read_index(addresses[0], full) is None
    for address in addresses[:2]:
        index.write_index(address, build_index(address, full), full)
    assert index.read_counts(addresses, full) == [10, 10, None]
    assert storage.expand(f"{ROOT}/set/*", full) == addresses
    found = index.read_index(addresses[1], full)
    assert found is not None
    assert found.keys == tuple(key for key, _ in samples[10:20])
    with pytest.raises(ConfigError, match=r"s3://shards/set/t-000000\.tar exists \(and 2 more"):
        write_shards(iter(samples), f"{ROOT}/set", samples_per_shard=10, prefix="t", options=full)
    write_shards(iter(samples[:5]), f"{ROOT}/set", samples_per_shard=5, prefix="t", overwrite=True, options=full)
    assert storage.expand(f"{ROOT}/set/*", full) == addresses[:1]
    assert index.read_counts(addresses[:1], full) == [None]


def test_many_shards_are_asked_for_at_once(s3: S3Server, full: Storage) -> None:
    addresses = [f"{ROOT}/many/s-{number:04d}.tar" for number in range(300)]
    storage.for_each(lambda address: storage.write_atomic(address, b"x", full), addresses)
    assert storage.expand(f"{ROOT}/many/s-{{0000..0299}}.tar", full) == tuple(addresses)
    assert index.read_counts(addresses, full) == [None] * 300
    storage.remove(addresses[7], full)
    with pytest.raises(ShardError, match=r"s-0007\.tar"):
        storage.expand(f"{ROOT}/many/s-{{0000..0299}}.tar", full)


def test_quoting_is_left_to_the_client(full: Storage) -> None:
    for name in ("a b", "a%20b", "ü#&+", "x=1"):
        storage.write_atomic(f"{ROOT}/q/{name}", name.encode(), full)
        assert storage.read_if_there(f"{ROOT}/q/{name}", full) == name.encode()
    with pytest.raises(ShardError, match="empty part"):
        storage.size(f"{ROOT}/q//a", full)
