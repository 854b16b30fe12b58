"""Makes the clients of object stores and HTTP servers from the first part of an address and the settings."""

import base64
import functools
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from odb_stream.errors import ConfigError
from odb_stream.storage.options import TEXTS, Storage

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

SHORTEST_WAIT, LONGEST_WAIT = 5.0, 15.0
"""Bounds in seconds of how long one try waits for a connection or for the next byte."""

# A whole request has no time limit: a shard takes as long as the training loop takes to read it.
_NO_LIMIT = "365 days"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@functools.lru_cache(maxsize=256)
def bucket_store(scheme: str, bucket: str, options: Storage, *, writing: bool = False) -> "ObjectStore":
    """The client of one bucket; credentials that the settings leave out come from the store's usual environment.

    A client for reading tries each request once, since its caller retries from the byte where it broke; one for
    writing retries by itself. Raises ConfigError if settings or environment cannot work.
    """
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{scheme}://{bucket}: the first part must be the name of a bucket: {scheme}://BUCKET/NAME")
    # The client's general options go into the same dict: passed separately, they would replace the environment's.
    config = _config(scheme, options) | _client(options)
    try:
        store: ObjectStore = _CLASSES[scheme](bucket, config=config, retry_config=_retries(options, writing=writing))
        return store
    except (BaseError, ValueError) as error:
        unknown = "check the Storage settings and the variables of the environment that it reads"
        words = next((words for sign, words in _SETUP.items() if sign in str(error)), unknown)
        problem = ConfigError(f"{scheme}://{bucket}: the client of the store cannot be set up: {words}")
    # Outside the handler: the client's text, which may hold a secret, must not get into the chain of causes.
    raise problem


@functools.lru_cache(maxsize=256)
def http_store(url: str, options: Storage) -> "ObjectStore":
    """The client of an HTTP server; ``url`` is scheme and authority, perhaps with a path and a query.

    A user and a password in the authority become basic authentication. Raises ConfigError if it is not an address.
    """
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    client = _client(options) | {"allow_http": scheme == "http"}
    if at:
        name, _, password = user.partition(":")
        login = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        client["default_headers"] = {"Authorization": f"Basic {login}"}
    elif options.session_token is not None:
        client["default_headers"] = {"Authorization": f"Bearer {options.session_token}"}
    try:
        return HTTPStore(
            f"{scheme}://{host}{rest[len(authority) :]}",
            client_options=client,  # type: ignore[arg-type]  # a plain dict where a typed one is declared
            retry_config=_retries(options, writing=False),
        )
    except (BaseError, ValueError):
        problem = ConfigError(f"{scheme}://{host}: not an HTTP address: check host and port")
    raise problem


def _client(options: Storage) -> dict[str, Any]:
    patience = f"{min(max(options.retry_seconds, SHORTEST_WAIT), LONGEST_WAIT):.0f} s"
    client: dict[str, Any] = {"timeout": _NO_LIMIT, "connect_timeout": patience, "read_timeout": patience}
    if options.endpoint is not None and options.endpoint.startswith("http://"):
        client["allow_http"] = True
    return client


def _retries(options: Storage, *, writing: bool) -> "RetryConfig":
    return {"max_retries": 1000 if writing else 0, "retry_timeout": timedelta(seconds=options.retry_seconds)}


# What each client calls the settings of ours.
_NAMES: dict[str, dict[str, str]] = {
    "s3": {name: name for name in TEXTS},
    "gs": {"endpoint": "base_url", "session_token": "bearer_token"},
    "az": {
        "endpoint": "endpoint",
        "access_key_id": "account_name",
        "secret_access_key": "account_key",
        "session_token": "token",
    },
}
_CLASSES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def _config(scheme: str, options: Storage) -> dict[str, Any]:
    """The settings that are given, by the client's names; what is left out the client takes from the environment."""
    given = {theirs: getattr(options, ours) for ours, theirs in _NAMES[scheme].items()}
    config = {name: value for name, value in given.items() if value is not None}
    return config | ({"skip_signature": True} if options.anonymous else {})


_SETUP = {
    "MissingAccount": "no Azure account is named; set AZURE_STORAGE_ACCOUNT_NAME or Storage.access_key_id",
    "InvalidAccessKey": "the Azure account key is not base64; check Storage.secret_access_key or "
    "AZURE_STORAGE_ACCOUNT_KEY",
    "OpenCredentials": "the file of credentials cannot be opened; check GOOGLE_APPLICATION_CREDENTIALS",
    "DecodeCredentials": "the file of credentials is not in Google's format; check GOOGLE_APPLICATION_CREDENTIALS",
}
