"""What went wrong with a request: the client's error by its cause, in words without an address or a secret.

The client says most of it only in the text of its error: the status, the store's code, the broken connection. That text
also contains signed addresses and what servers answer, so only known words are taken from it.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus

from obstore import exceptions

from odb_stream.storage.options import Storage

CLIENT_ERRORS = (exceptions.BaseError, OSError, ValueError)
"""The exceptions that a request to a store raises."""


class Cause(Enum):
    """Causes of a failure, by what can be done about them."""

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
    """One failure: its cause, the words for it, and the store's own code, if it gave one."""

    cause: Cause
    words: str
    code: str = ""


_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>|\(code: ([A-Za-z]+)\)")
# Where cloud machines ask for their credentials. On other machines nobody answers, which means: no credentials.
_CREDENTIAL_SERVERS = re.compile(r"169\.254\.|metadata\.google\.internal|fd00:ec2")

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_TEMPORARY_STATUS = frozenset({408, 425, 429})
_NEVER_STATUS = frozenset({501, 505})
_TEMPORARY_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "InternalError", "ServiceUnavailable"})
_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound"})
_CREDENTIAL_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})

# Signs in the client's text -> cause and words; the first match counts.
_SIGNS: tuple[tuple[str, Cause, str], ...] = (
    ("BadScheme", Cause.PERMANENT, "the endpoint has no encryption: set AWS_ALLOW_HTTP=true, or Storage.endpoint"),
    ("MissingContentLength", Cause.PERMANENT, "the server does not say how long the file is; serve it as a plain file"),
    ("source: Header", Cause.PERMANENT, "the answer lacks what such a store always states: is it the right endpoint?"),
    ("without LOCATION", Cause.PERMANENT, "the bucket lies in another region: set Storage.region or AWS_REGION"),
    ("BareRedirect", Cause.PERMANENT, "the bucket lies in another region: set Storage.region or AWS_REGION"),
    ("InvalidCertificate", Cause.PERMANENT, "the server's certificate is not trusted: install its root certificate"),
    ("Could not parse path", Cause.PERMANENT, "the name has an empty part (`//`) or a dot part, which cannot be read"),
    ("ConnectionRefused", Cause.TEMPORARY, "no server answers there (connection refused)"),
    ("dns error", Cause.TEMPORARY, "the name of the host is not known"),
    ("TimedOut", Cause.TEMPORARY, "the server did not answer in time"),
    ("kind: Timeout", Cause.TEMPORARY, "the server did not answer in time"),
    ("kind: Connect", Cause.TEMPORARY, "the server could not be reached"),
    ("error sending request", Cause.TEMPORARY, "the server could not be reached"),
)


def explain(error: Exception) -> Failure:
    """The failure behind a client's error."""
    text = str(error)
    answered = _STATUS.search(text)
    status = int(answered[1]) if answered else None
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    return Failure(_cause(error, text, status, code), _words(text, status, code), code)


def _cause(error: Exception, text: str, status: int | None, code: str) -> Cause:
    if _CREDENTIAL_SERVERS.search(text):
        return Cause.NO_CREDENTIALS
    if code in _BUCKET_CODES:
        return Cause.NO_BUCKET
    if code in _CREDENTIAL_CODES or code == "AccessDenied" or status in (401, 403):
        return Cause.DENIED
    if status == 404 or (status is None and isinstance(error, FileNotFoundError)):
        return Cause.MISSING
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return Cause.DENIED
    if isinstance(error, exceptions.PreconditionError):
        return Cause.CHANGED
    if isinstance(error, exceptions.NotSupportedError):
        return Cause.UNRANGED
    if status == 416:
        return Cause.PAST_END
    if status is not None:
        lasting = status in _NEVER_STATUS or (status < 500 and status not in _TEMPORARY_STATUS)
        return Cause.PERMANENT if lasting and code not in _TEMPORARY_CODES else Cause.TEMPORARY
    return next((cause for sign, cause, _ in _SIGNS if sign in text), Cause.TEMPORARY)


def _words(text: str, status: int | None, code: str) -> str:
    if status is not None:
        phrase = _PHRASES.get(status, "")
        return f"the server answered {status}{phrase and f' {phrase}'}{code and f' ({code})'}"
    if code:
        return f"the server answered {code}"
    return next((words for sign, _, words in _SIGNS if sign in text), "the connection broke")


# ---- What to look at when a store refuses ----

# Scheme -> where credentials come from, in words.
_GIVE = {
    "s3": "Storage.access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (the path of a file), or a bearer token as Storage.session_token",
    "az": "Storage.access_key_id and secret_access_key (name and key of the account), or AZURE_STORAGE_ACCOUNT_NAME "
    "with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "http": "user and password in the address, or a bearer token as Storage.session_token",
}
_DENIAL_CODES = {
    "InvalidAccessKeyId": "the store knows no such key: check Storage.access_key_id or AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not belong to the key: check Storage.secret_access_key or "
    "AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired: get new ones, with Storage.session_token or AWS_SESSION_TOKEN",
    "InvalidToken": "the token is wrong: check Storage.session_token or AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
}
_UNCLEAR_CODES = frozenset({"", "AccessDenied"})


def credentials_hint(scheme: str, options: Storage, failure: Failure, *, doing: str) -> str:
    """What was refused and the way out, without a secret; ``doing`` is "reading" or "writing"."""
    give = _GIVE.get(scheme, _GIVE["http"])
    if failure.cause is Cause.NO_CREDENTIALS:
        return f"there are no credentials: give {give}; or Storage(anonymous=True) where the data are public"
    if failure.code in _DENIAL_CODES:
        return f"{failure.words}: {_DENIAL_CODES[failure.code]}"
    if options.anonymous:
        return f"{failure.words} without credentials: leave out Storage.anonymous, and give {give}"
    if scheme in ("http", "https"):
        return f"{failure.words}: give {give}; the signature of a signed address may have expired"
    return f"{failure.words}: these credentials do not allow {doing}; grant it to them, or give others: {give}"


def may_be_missing(scheme: str, failure: Failure) -> bool:
    """Whether stores also answer like this for a missing object, to clients that may not list."""
    return failure.code in _UNCLEAR_CODES or scheme in ("http", "https")
