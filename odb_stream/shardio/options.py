"""How storage is reached: the settings that a source hands down to every read and write."""

from dataclasses import dataclass, field

from odb_stream.config import MEBIBYTE, require_int
from odb_stream.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How object stores and HTTP servers are reached; what is left out comes from the environment, as usual there.

    Args:
        endpoint: address of an S3-compatible server, or of another server that speaks the store's protocol.
        region: of the bucket.
        access_key_id, secret_access_key, session_token: credentials; they appear in no message and no ``repr``.
        anonymous: read public data without credentials.
        retry_seconds: how long a request, or a broken read that goes on at the byte where it broke, is tried again
            before it is an error.
        read_ahead: bytes of a shard that are fetched before they are asked for.
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
        require_int("Storage.read_ahead", self.read_ahead, minimum=1)
        if isinstance(self.retry_seconds, bool) or not isinstance(self.retry_seconds, int | float):
            raise ConfigError(f"Storage.retry_seconds must be a number of seconds, not {self.retry_seconds!r}")
        if self.retry_seconds < 0:
            raise ConfigError(f"Storage.retry_seconds is {self.retry_seconds}, but must be at least 0")


DEFAULT = Storage()
"""Everything from the environment."""
