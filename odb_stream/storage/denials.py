"""What to look at when a store refuses a request: the setting, and the variable of the environment, by its name."""

from odb_stream.storage.failures import Failure, Kind
from odb_stream.storage.options import Storage

# Scheme -> where credentials come from, in words.
_GIVE = {
    "s3": "Storage.access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (the path of a file), or a bearer token as Storage.session_token",
    "az": "Storage.access_key_id and secret_access_key (name and key of the account), or AZURE_STORAGE_ACCOUNT_NAME "
    "with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "http": "user and password in the address, or a bearer token as Storage.session_token",
}
_CODES = {
    "InvalidAccessKeyId": "the store knows no such key: check Storage.access_key_id or AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not belong to the key: check Storage.secret_access_key or "
    "AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired: get new ones, with Storage.session_token or AWS_SESSION_TOKEN",
    "InvalidToken": "the token is wrong: check Storage.session_token or AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
}
_UNCLEAR_CODES = frozenset({"", "AccessDenied"})


def credentials_hint(scheme: str, options: Storage, failure: Failure, *, doing: str) -> str:
    """What was refused and the way out, in words without a secret; ``doing`` is "reading" or "writing"."""
    give = _GIVE.get(scheme, _GIVE["http"])
    if failure.kind is Kind.NO_CREDENTIALS:
        return f"there are no credentials: give {give}; or Storage(anonymous=True) where the data are public"
    if failure.code in _CODES:
        return f"{failure.words}: {_CODES[failure.code]}"
    if options.anonymous:
        return f"{failure.words} without credentials: leave out Storage.anonymous, and give {give}"
    if scheme in ("http", "https"):
        return f"{failure.words}: give {give}; the signature of a signed address may have expired"
    return f"{failure.words}: these credentials do not allow {doing}; grant it to them, or give others: {give}"


def may_be_missing(scheme: str, failure: Failure) -> bool:
    """Whether stores also refuse like this what is not there, to those who may not list."""
    return failure.code in _UNCLEAR_CODES or scheme in ("http", "https")
