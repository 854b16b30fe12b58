"""What went wrong with a request: the client's error sorted into kinds, in words that hold no address and no secret.

The client tells most of it in its text alone: the status, the store's code for the cause, the broken connection. That
text also holds addresses with signatures, and what servers answer; so only known words are taken from it.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus

from obstore.exceptions import (
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

CLIENT_ERRORS = (BaseError, OSError, ValueError)
"""What a request to a store raises."""


class Kind(Enum):
    """What can be done about a failure."""

    TEMPORARY = auto()  # try again
    MISSING = auto()  # no such object
    NO_BUCKET = auto()
    DENIED = auto()
    NO_CREDENTIALS = auto()
    CHANGED = auto()  # the object is not the one that was asked for
    PAST_END = auto()  # the range starts at or after the end
    UNRANGED = auto()  # the server sends whole files only
    PERMANENT = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: its kind, the words for it, and the store's code for the cause, if it gave one."""

    kind: Kind
    words: str
    code: str = ""


_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>|\(code: ([A-Za-z]+)\)")
# Where machines of the clouds ask for their credentials; elsewhere nobody answers there.
_CREDENTIAL_SERVERS = re.compile(r"169\.254\.|metadata\.google\.internal|fd00:ec2")

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_TEMPORARY_STATUS = frozenset({408, 425, 429})
_NEVER_STATUS = frozenset({501, 505})
_TEMPORARY_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "InternalError", "ServiceUnavailable"})
_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound"})
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})

# Signs in the client's text -> kind and words; the first that fits counts.
_SIGNS: tuple[tuple[str, Kind, str], ...] = (
    ("BadScheme", Kind.PERMANENT, "the endpoint has no encryption: set AWS_ALLOW_HTTP=true, or Storage.endpoint"),
    ("MissingContentLength", Kind.PERMANENT, "the server does not say how long the file is; serve it as a plain file"),
    ("source: Header", Kind.PERMANENT, "the answer lacks what such a store always states: is it the right endpoint?"),
    ("without LOCATION", Kind.PERMANENT, "the bucket lies in another region: set Storage.region or AWS_REGION"),
    ("BareRedirect", Kind.PERMANENT, "the bucket lies in another region: set Storage.region or AWS_REGION"),
    ("InvalidCertificate", Kind.PERMANENT, "the server's certificate is not trusted: install its root certificate"),
    ("Could not parse path", Kind.PERMANENT, "the name has an empty part (`//`) or a dot part, which cannot be read"),
    ("ConnectionRefused", Kind.TEMPORARY, "no server answers there (connection refused)"),
    ("dns error", Kind.TEMPORARY, "the name of the host is not known"),
    ("TimedOut", Kind.TEMPORARY, "the server did not answer in time"),
    ("kind: Timeout", Kind.TEMPORARY, "the server did not answer in time"),
    ("kind: Connect", Kind.TEMPORARY, "the server could not be reached"),
    ("error sending request", Kind.TEMPORARY, "the server could not be reached"),
)


def explain(error: Exception) -> Failure:
    """The failure that a client's error stands for."""
    text = str(error)
    status = _number(_STATUS.search(text))
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    return Failure(_kind(error, text, status, code), _words(text, status, code), code)


def _kind(error: Exception, text: str, status: int | None, code: str) -> Kind:
    if _CREDENTIAL_SERVERS.search(text):
        return Kind.NO_CREDENTIALS
    if code in _BUCKET_CODES:
        return Kind.NO_BUCKET
    if code in _CREDENTIAL_CODES or code == "AccessDenied" or status in (401, 403):
        return Kind.DENIED
    if status == 404 or (status is None and isinstance(error, FileNotFoundError)):
        return Kind.MISSING
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return Kind.DENIED
    if isinstance(error, PreconditionError):
        return Kind.CHANGED
    if isinstance(error, NotSupportedError):
        return Kind.UNRANGED
    if status == 416:
        return Kind.PAST_END
    if status is not None:
        lasting = status in _NEVER_STATUS or (status < 500 and status not in _TEMPORARY_STATUS)
        return Kind.PERMANENT if lasting and code not in _TEMPORARY_CODES else Kind.TEMPORARY
    return next((kind for sign, kind, _ in _SIGNS if sign in text), Kind.TEMPORARY)


def _words(text: str, status: int | None, code: str) -> str:
    if status is not None:
        phrase = _PHRASES.get(status, "")
        return f"the server answered {status}{phrase and f' {phrase}'}{code and f' ({code})'}"
    if code:
        return f"the server answered {code}"
    return next((words for sign, _, words in _SIGNS if sign in text), "the connection broke")


def _number(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found else None
