"""When a failure is tried again: growing pauses with jitter, within the limit, and counted anew after progress."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.storage.failures import Cause, Failure, explain
from odb_stream.storage.retries import FIRST_PAUSE, LONGEST_PAUSE, Patience, RequestFailed, retried

BROKEN = Failure(Cause.TEMPORARY, "the connection broke")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(limit=st.floats(0, 200), trying=st.floats(0, 20))
def test_pauses_grow_and_end_at_the_limit(limit: float, trying: float) -> None:
    clock = Clock()
    patience = Patience("x", limit, clock=clock)
    pauses: list[float] = []
    begin = clock.now

    def fail_on() -> None:
        while True:
            pauses.append(patience.pause(BROKEN))
            clock.now += pauses[-1] + trying

    with pytest.raises(RequestFailed) as failed:
        fail_on()
    assert failed.value.failure is BROKEN
    # A try that has begun may end after the limit, and a last one begins at the limit.
    assert limit - 1e-6 <= clock.now - begin <= limit + trying + 1e-6
    for count, pause in enumerate(pauses[:-1]):
        step = min(FIRST_PAUSE * 2**count, LONGEST_PAUSE)
        assert step / 2 <= pause <= step
    assert all(pause <= LONGEST_PAUSE for pause in pauses)


def test_pauses_differ_from_rank_to_rank() -> None:
    assert len({Patience("x", 100).pause(BROKEN) for _ in range(20)}) > 10


def test_progress_lets_the_limit_count_anew(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience("s3://b/k", 10, clock=clock)
    for _ in range(5):
        patience.pause(BROKEN)
        patience.pause(BROKEN)
        assert patience.failing
        # The reader may be slow: what passes between progress and the next failure does not count.
        clock.now += 9
        patience.progress()
        clock.now += 1000
    assert not patience.failing
    assert caplog.messages == ["s3://b/k: the connection broke; trying again for up to 10 s"] * 5
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.TEMPORARY])
def test_what_lasts_is_not_tried_again(cause: Cause) -> None:
    with pytest.raises(RequestFailed, match="tried once"):
        Patience("x", 100).pause(Failure(cause, "no"))


def test_credentials_that_were_there_before_may_come_back() -> None:
    lost = Failure(Cause.NO_CREDENTIALS, "no")
    assert Patience("x", 100, known=True).pause(lost) > 0
    patience = Patience("x", 100)
    patience.progress()
    assert patience.pause(lost) > 0


def test_a_request_is_repeated_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odb_stream.storage.retries.FIRST_PAUSE", 0.001)
    answers = iter([OSError("broken"), OSError("broken"), None])

    def request() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "done"

    assert retried(request, Patience("x", 1000)) == "done"


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        ("status", "TEMPORARY", "the connection broke"),
        ("503 Service Unavailable: <Code>SlowDown</Code>", "TEMPORARY", "503 Service Unavailable (SlowDown)"),
        ("429 Too Many Requests: ", "TEMPORARY", "429 Too Many Requests"),
        ("599 ", "TEMPORARY", "599"),
        ("501 ", "PERMANENT", "501 Not Implemented"),
        ("400 Bad Request: <Code>RequestTimeout</Code>", "TEMPORARY", "400 Bad Request (RequestTimeout)"),
        ("400 Bad Request: <Code>InvalidArgument</Code>", "PERMANENT", "400 Bad Request (InvalidArgument)"),
        ("400 Bad Request: <Code>ExpiredToken</Code>", "DENIED", "400 Bad Request (ExpiredToken)"),
        ("404 Not Found: <Code>NoSuchBucket</Code>", "NO_BUCKET", "404 Not Found (NoSuchBucket)"),
        ("403 Forbidden: ", "DENIED", "403 Forbidden"),
        ("failed (code: AccessDenied)", "DENIED", "the server answered AccessDenied"),
        ("GET http://169.254.169.254/latest: non-2xx status code: 403 ", "NO_CREDENTIALS",
         "the server answered 403 Forbidden"),
        ("kind: Connect, ConnectionRefused", "TEMPORARY", "no server answers there (connection refused)"),
        ("kind: Connect, dns error", "TEMPORARY", "the name of the host is not known"),
        ("source: BadScheme", "PERMANENT",
         "the endpoint has no encryption: set AWS_ALLOW_HTTP=true, or Storage.endpoint"),
    ],
)  # fmt: skip
def test_causes_and_words_of_failures(text: str, cause: str, words: str) -> None:
    if text[0].isdigit():
        text, words = f"Server returned non-2xx status code: {text}", f"the server answered {words}"
    failure = explain(OSError(text))
    assert (failure.cause, failure.words) == (Cause[cause], words)
