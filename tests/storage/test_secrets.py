"""No user, password, key or signature gets into a message, a chain of causes, a log or a ``repr``."""

import base64
import logging
from collections.abc import Callable

import pytest
from http_server import Fault, FaultyServer
from make_tars import read_one
from storage_support import everything_said, make_shard

from odb_stream import storage
from odb_stream.errors import ConfigError, OdbStreamError, ShardError
from odb_stream.shards import index
from odb_stream.shards.reader import read_samples
from odb_stream.storage.options import Storage

SECRETS = ("hidden-user", "hidden-password", "hidden-signature", "hidden-key-id", "hidden-secret", "hidden-token")
S3_SETTINGS = {
    "access_key_id": "hidden-key-id",
    "secret_access_key": "hidden-secret",
    "session_token": "hidden-token",
    "region": "us-east-1",
    "retry_seconds": 0.2,
}

REQUESTS: dict[str, Callable[[str, Storage], object]] = {
    "open": lambda address, options: storage.open_stream(address, 3, options),
    "read": lambda address, options: storage.open_stream(address, 0, options).read(),
    "size": lambda address, options: storage.size(address, options),
    "range": lambda address, options: storage.read_if_there(address, options, length=5),
    "expand": lambda address, options: storage.expand([address, f"{address}x"], options),
    "samples": lambda address, options: list(read_samples(address, options=options)),
    "counts": lambda address, options: index.read_counts([address, address], options),
    "write": lambda address, options: storage.write_atomic(address, b"x", options),
}
FAULTS = {
    "refused": Fault(status=403, body=b"<Code>SignatureDoesNotMatch</Code> hidden-signature hidden-key-id"),
    "broken": Fault(status=500, body=b"hidden-password"),
    "missing": Fault(status=404, body=b"hidden-signature"),
    "bad": Fault(status=400, body=b"<Code>AuthorizationHeaderMalformed</Code> hidden-key-id"),
    "cut": Fault(drop_after=2500),
    "replaced": Fault(e_tag='"hidden-token"', drop_after=2500),
}


def check(call: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """The call raises or not; nothing that is said holds a secret."""
    with caplog.at_level(logging.DEBUG):
        try:
            call()
        except OdbStreamError as error:
            said = everything_said(error)
            assert not [secret for secret in SECRETS if secret in said], said
    assert not [secret for secret in SECRETS if secret in caplog.text], caplog.text


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_http_addresses(http: FaultyServer, request_name: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    http.files["/a.tar"] = make_shard(0, 3)
    http.always = FAULTS[fault]
    address = f"http://hidden-user:hidden-password@{http.authority}/a.tar?X-Signature=hidden-signature"
    check(lambda: REQUESTS[request_name](address, Storage(retry_seconds=0.2)), caplog)
    token = Storage(retry_seconds=0.2, session_token="hidden-token")
    check(lambda: REQUESTS[request_name](address.replace("hidden-user:hidden-password@", ""), token), caplog)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_buckets(http: FaultyServer, request_name: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    http.files["/shards/a.tar"] = make_shard(0, 3)
    http.always = FAULTS[fault]
    options = Storage(endpoint=http.url, **S3_SETTINGS)  # type: ignore[arg-type]
    check(lambda: REQUESTS[request_name]("s3://shards/a.tar", options), caplog)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://hidden-key-id:hidden-secret@shards/a.tar", "s3://shards/a.tar"),
        ("http://hidden-user:hidden-password@h/*.tar?s=hidden-signature", "http://h/*.tar"),
        ("http://hidden-user:hidden-password@[bad/a.tar", "http://[bad"),
        ("ftp://hidden-user:hidden-password@h/a?s=hidden-signature", "ftp://h/a"),
        ("pipe:curl https://hidden-user:hidden-password@h/a?s=hidden-signature", "pipe:curl https://h/a"),
        ("https://hidden-user:hidden-password@h/{a.tar?s=hidden-signature", "https://h/{a.tar"),
    ],
)
def test_addresses_that_are_refused(address: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        storage.size(*storage.patterns(address))
    said = everything_said(refused.value)
    assert shown in str(refused.value)
    assert not [secret for secret in SECRETS if secret in said], said


def test_settings() -> None:
    options = Storage(endpoint="http://h:9000/path", **S3_SETTINGS)  # type: ignore[arg-type]
    assert "http://h:9000/path" in repr(options)
    assert not [secret for secret in SECRETS if secret in repr(options)]
    for bad in (
        {"endpoint": "http://hidden-user:hidden-password@h"},
        {"endpoint": "http://h/?s=hidden-signature"},
        {"endpoint": "hidden-password"},
        {"access_key_id": "hidden-key-id"},
        {"access_key_id": "hidden-key-id", "secret_access_key": 5},
        {"session_token": "hidden-token", "anonymous": True},
    ):
        with pytest.raises(ConfigError, match=r"Storage\.") as refused:
            Storage(**bad)  # type: ignore[arg-type]
        assert not [secret for secret in SECRETS if secret in everything_said(refused.value)]


@pytest.mark.parametrize(
    "bad",
    [
        *({"endpoint": ""}, {"region": 3}, {"anonymous": 1}, {"read_ahead": 0}),
        *({"retry_seconds": value} for value in (-1, float("inf"), True)),
    ],
)
def test_settings_that_are_none(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"Storage\.{next(iter(bad))}"):
        Storage(**bad)  # type: ignore[arg-type]


def test_what_a_server_is_told(http: FaultyServer) -> None:
    http.files["/a.tar"] = b"data"
    assert storage.read_if_there(f"http://us%40er:pass:word@{http.authority}/a.tar?sign=s%2Fx") == b"data"
    assert storage.read_if_there(f"{http.url}/a.tar", Storage(session_token="token")) == b"data"
    assert storage.read_if_there(f"{http.url}/a.tar") == b"data"
    basic, bearer, nothing = (seen.headers.get("authorization") for seen in http.seen)
    assert base64.b64decode((basic or "").removeprefix("Basic ")) == b"us@er:pass:word"
    assert (bearer, nothing) == ("Bearer token", None)
    assert [seen.target for seen in http.seen] == ["/a.tar?sign=s%2Fx", "/a.tar", "/a.tar"]


def test_a_signed_address_keeps_its_query_for_the_index(http: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    address = f"{http.url}/signed/a.tar?sign=hidden-signature"
    assert index.index_address(address) == f"{http.url}/signed/a.tar.idx.json?sign=hidden-signature"
    http.files["/signed/a.tar"] = make_shard(0, 3)
    http.files["/signed/a.tar.idx.json"] = b"{}"
    with pytest.raises(ShardError, match=r"/a\.tar\.idx\.json: the index is not a JSON object"):
        index.read_index(address)
    # A signature for the shard alone: whether there is an index cannot be told.
    http.faults.append(Fault(status=403, body=b"<Code>SignatureDoesNotMatch</Code>"))
    assert index.read_index(address) is None
    assert "indexes there are taken as missing" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("address", ["http://{}/a.tar", "s3://shards/a.tar"])
def test_one_sample_is_one_ranged_request(http: FaultyServer, address: str) -> None:
    shard = make_shard(0, 40, size=100_000)
    http.files["/a.tar"] = http.files["/shards/a.tar"] = shard
    address = address.format(http.authority)
    options = Storage(endpoint=http.url, **S3_SETTINGS)  # type: ignore[arg-type]
    last = list(read_samples(address, options=options))[-1]
    assert len(http.seen) == 1
    http.seen.clear()
    assert read_one(address, last.offset, last.index, options) == last
    assert [(seen.method, seen.headers.get("range")) for seen in http.seen] == [("GET", f"bytes={last.offset}-")]
