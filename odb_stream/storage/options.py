"""How storage is reached: the settings that a source passes to every read and write."""

import re
from dataclasses import dataclass, field

from odb_stream.config import MEBIBYTE, require_int
from odb_stream.errors import ConfigError

TEXTS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
_CREDENTIALS = TEXTS[2:]


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How to reach object stores and HTTP servers; a setting left out comes from the store's usual environment.

    Args:
        endpoint: address of an S3-compatible server, or of another server that speaks the store's protocol; http://
            means no encryption.
        region: of the bucket (S3).
        access_key_id, secret_access_key: credentials of S3; for Azure the name and the key of the account.
        session_token: of temporary S3 credentials; for Google, Azure and HTTP a bearer token. Credentials never
            appear in a message or a ``repr``.
        anonymous: read public data without credentials.
        retry_seconds: seconds for which a request, or a read from the byte where it broke, is retried before it is an
            error; counted from the last byte that arrived.
        read_ahead: bytes of a shard that are fetched before they are read.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    anonymous: bool = False
    retry_seconds: float = 120.0
    read_ahead: int = 16 * MEBIBYTE

    def __post_init__(self) -> None:
        for name in TEXTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                shown = "" if name in _CREDENTIALS else f", not {value!r}"
                raise ConfigError(f"Storage.{name} must be a non-empty string{shown}; leave it out otherwise")
        if self.endpoint is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", self.endpoint):
            # A value that does not match may contain a password, so it is not shown.
            raise ConfigError(
                "Storage.endpoint is not the address of a server: write http://HOST:PORT or https://HOST, without "
                "user, password and query"
            )
        if not isinstance(self.anonymous, bool):
            raise ConfigError(f"Storage.anonymous must be True or False, not {self.anonymous!r}")
        given = [name for name in _CREDENTIALS if getattr(self, name) is not None]
        if self.anonymous and given:
            raise ConfigError(f"Storage.anonymous is True, but {given[0]} is given: leave one of the two out")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("Storage.access_key_id and secret_access_key go together: give both or neither")
        require_int("Storage.read_ahead", self.read_ahead, minimum=1)
        if isinstance(self.retry_seconds, bool) or not isinstance(self.retry_seconds, int | float):
            raise ConfigError(f"Storage.retry_seconds must be a number of seconds, not {self.retry_seconds!r}")
        if not 0 <= self.retry_seconds < float("inf"):
            raise ConfigError(f"Storage.retry_seconds is {self.retry_seconds}, but must be at least 0, and finite")


DEFAULT = Storage()
"""Everything from the environment."""
