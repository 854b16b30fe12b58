"""When to try again: exponential backoff with jitter, within a limit of seconds without progress."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from odb_stream.storage.failures import CLIENT_ERRORS, Cause, Failure, explain

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 8.0
"""Bounds in seconds of the pause between two tries; each is drawn from the upper half of its step."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

# Its own generator: draws of the program's shared one must not depend on the network.
_jitter = random.Random()


class RequestFailed(Exception):
    """A request failed and is not tried again; ``tries`` says in words what was tried."""

    def __init__(self, failure: Failure, tries: str) -> None:
        super().__init__(f"{failure.words}; {tries}")
        self.failure = failure
        self.tries = tries


class Patience:
    """How long one request, or one stream of bytes, is still tried again.

    Args:
        name: of what is read, for the log.
        seconds: limit from the first failure since the last progress. A try that has begun is waited for.
        known: whether the store has answered before: only then can missing credentials be a passing trouble.
        clock: gives the time in seconds.
    """

    def __init__(
        self, name: str, seconds: float, *, known: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._known = known
        self._clock = clock
        self._first_failure = 0.0
        self._failures = 0

    @property
    def failing(self) -> bool:
        """Whether something has failed since the last progress."""
        return self._failures > 0

    def progress(self) -> None:
        """Something came: the limit counts anew from the next failure."""
        self._failures = 0
        self._known = True

    def pause(self, failure: Failure) -> float:
        """Seconds to wait before the next try. Raises RequestFailed when there shall be none."""
        now = self._clock()
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        left = self._first_failure + self._seconds - now
        passing = failure.kind is Cause.TEMPORARY or (failure.kind is Cause.NO_CREDENTIALS and self._known)
        if not passing or left <= 0:
            raise RequestFailed(failure, self._account(now))
        if self._failures == 1:
            logger.warning("%s: %s; trying again for up to %g s", self._name, failure.words, self._seconds)
        step = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE)
        return min(step * _jitter.uniform(0.5, 1.0), left)

    def _account(self, now: float) -> str:
        if self._failures == 1:
            return "tried once"
        return f"tried {self._failures} times in {now - self._first_failure:.1f} s"


def retried(request: Callable[[], Result], patience: Patience) -> Result:
    """What the request returns. Raises RequestFailed when it fails for good."""
    while True:
        try:
            return request()
        except CLIENT_ERRORS as error:
            failure = explain(error)
        # Not while the client's error is handled: its text must not get into the chain of causes.
        time.sleep(patience.pause(failure))
