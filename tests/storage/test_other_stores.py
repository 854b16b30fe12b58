"""Google and Azure addresses: what goes over the wire, from the settings and from the environment."""

import os

import pytest
from http_server import Fault, FaultyServer

from odb_stream import storage
from odb_stream.errors import ConfigError, ShardError
from odb_stream.storage.options import Storage

KEY = "a2V5"
"""A key as Azure gives them: base64."""
ACCOUNT = {"access_key_id": "account", "secret_access_key": KEY}


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "AWS_"))]:
        monkeypatch.delenv(name)
    storage.forget_clients()


@pytest.mark.parametrize(
    ("address", "settings", "authorization"),
    [
        ("gs://store/a.tar", {"session_token": "token"}, "Bearer token"),
        ("gs://store/a.tar", {"anonymous": True}, None),
        ("az://store/a.tar", ACCOUNT, "SharedKey account:"),
        ("az://store/a.tar", {**ACCOUNT, "session_token": "token"}, "Bearer"),
        ("s3://store/a.tar", {"anonymous": True}, None),
        ("s3://store/a.tar", {"access_key_id": "id", "secret_access_key": "x"}, "AWS4-HMAC-SHA256 Credential=id/"),
    ],
)
def test_reading(http: FaultyServer, address: str, settings: dict[str, str], authorization: str | None) -> None:
    http.files["/store/a.tar"] = b"0123456789"
    options = Storage(retry_seconds=1, endpoint=http.url, **settings)  # type: ignore[arg-type]
    with storage.open_stream(address, 4, options) as stream:
        assert stream.read() == b"456789"
    assert storage.size(address, options) == 10
    for seen in http.seen:
        assert (seen.headers.get("authorization") or "").startswith(authorization or "")
        assert authorization is not None or "authorization" not in seen.headers
    assert [(seen.method, seen.headers.get("range")) for seen in http.seen] == [("GET", "bytes=4-"), ("HEAD", None)]


def test_the_azure_account_from_the_environment(http: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    http.files["/store/a.tar"] = b"0123456789"
    options = Storage(retry_seconds=1, endpoint=http.url)
    with pytest.raises(ConfigError, match=r"no Azure account is named; set AZURE_STORAGE_ACCOUNT_NAME or Storage\."):
        storage.size("az://store/a.tar", options)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    assert storage.size("az://store/a.tar", options) == 10


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gs://store/a.tar", "give GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://store/a.tar", r"give others: Storage\.access_key_id and .* \(name and key of the account\)"),
        ("http://{}/store/a.tar", "give user and password in the address"),
    ],
)
def test_refusals(http: FaultyServer, address: str, words: str) -> None:
    http.always = Fault(status=403)
    settings = ACCOUNT if address.startswith("az") else {"anonymous": True}
    options = Storage(retry_seconds=1, endpoint=http.url, **settings)  # type: ignore[arg-type]
    with pytest.raises(ShardError, match=words):
        storage.size(address.format(http.authority), options)


def test_settings_that_no_client_takes(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"key is not base64; check Storage\.secret_access_key"):
        storage.size("az://store/a", Storage(access_key_id="account", secret_access_key="not base64!"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")
    with pytest.raises(ConfigError, match="cannot be opened; check GOOGLE_APPLICATION_CREDENTIALS"):
        storage.size("gs://store/a", Storage())
    for address in ("s3://", "s3:///a.tar", "gs://bad bucket/a", "s3://a*/b.tar"):
        with pytest.raises(ConfigError, match=r"the bucket is not named|the first part must be the name of a bucket"):
            storage.size(address)


def test_an_endpoint_of_another_kind(http: FaultyServer) -> None:
    http.always = Fault(no_length=True)
    http.files["/store/a.tar"] = b"0123456789"
    with pytest.raises(ShardError, match=r"(does not say how long|is it the right endpoint).*tried once"):
        storage.size("gs://store/a.tar", Storage(endpoint=http.url, anonymous=True))
