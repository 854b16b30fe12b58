"""Retries: exponential backoff with jitter, within a limit of seconds without progress."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from odb_stream.storage.failures import CLIENT_ERRORS, Cause, Failure, explain

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 8.0
"""Bounds in seconds of the pause between two tries.

Each pause is drawn from the upper half of its step: ranks that fail together must not all return together."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

# Its own generator: draws of the program's shared one must not depend on the network.
_jitter = random.Random()


class RequestFailed(Exception):
    """A request failed and is not retried; ``tries`` says what was tried, in words."""

    def __init__(self, failure: Failure, tries: str) -> None:
        super().__init__(f"{failure.words}; {tries}")
        self.failure = failure
        self.tries = tries


class Patience:
    """How long one request, or one stream of bytes, is retried.

    Args:
        name: the address, for the log.
        seconds: limit from the first failure since the last progress. A try that has begun is allowed to finish.
        known: whether the store has answered before: only then can missing credentials be temporary.
        clock: returns the time in seconds.
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
        """Whether a try has failed since the last progress."""
        return self._failures > 0

    def progress(self) -> None:
        """Bytes arrived: the limit starts again at the next failure."""
        self._failures = 0
        self._known = True

    def pause(self, failure: Failure) -> float:
        """Seconds to wait before the next try. Raises RequestFailed if there is none."""
        now = self._clock()
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        left = self._first_failure + self._seconds - now
        temporary = failure.cause is Cause.TEMPORARY or (failure.cause is Cause.NO_CREDENTIALS and self._known)
        if not temporary or left <= 0:
            seconds = now - self._first_failure
            once = self._failures == 1
            raise RequestFailed(failure, "tried once" if once else f"tried {self._failures} times in {seconds:.1f} s")
        if self._failures == 1:
            logger.warning("%s: %s; trying again for up to %g s", self._name, failure.words, self._seconds)
        step = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE)
        return min(step * _jitter.uniform(0.5, 1.0), left)


def retried(request: Callable[[], Result], patience: Patience) -> Result:
    """The result of the request. Raises RequestFailed when it finally fails."""
    while True:
        try:
            return request()
        except CLIENT_ERRORS as error:
            failure = explain(error)
        # Outside the handler: the client's text, which may hold a secret, must not get into the chain of causes.
        time.sleep(patience.pause(failure))
