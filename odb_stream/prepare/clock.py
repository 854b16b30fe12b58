"""A clock for Prepare: how long openers, stages and the whole way of a record take."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from odb_stream.errors import OdbStreamError

WHOLE = -1
OPENER = 0

TimedPart = tuple[int, int]
"""What was timed: the number of the source, and ``OPENER``, ``WHOLE`` (a record's whole way) or 1 + the stage's place.
"""


class Spent(NamedTuple):
    """A number of calls, and the seconds that they took together."""

    calls: int
    seconds: float

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.calls + other.calls, self.seconds + other.seconds)


NOTHING = Spent(0, 0.0)


class Clock:
    """Adds up the time of calls by part. Pickled, it arrives as a new clock: each process has its own."""

    def __init__(self) -> None:
        self._warm = False
        self._spent: defaultdict[TimedPart, Spent] = defaultdict(lambda: NOTHING)

    @contextlib.contextmanager
    def on(self, part: TimedPart) -> Iterator[None]:
        """Count the time of the block under a part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[part] = self._spent[part].plus(Spent(1, time.perf_counter() - started))

    def warm_up(self, call: Callable[[], object]) -> None:
        """Make a process's first call once more, before it counts.

        Whatever is loaded on first use (a tokenizer, a library) would otherwise be counted as the stage's own work.
        """
        if not self._warm:
            self._warm = True
            with contextlib.suppress(OdbStreamError):  # the call that counts raises it again
                call()
            self._spent.clear()

    def take(self) -> dict[TimedPart, Spent]:
        """What was counted since the last call; the count starts again from zero."""
        spent = dict(self._spent)
        self._spent.clear()
        return spent

    def __reduce__(self) -> tuple[Any, ...]:
        return Clock, ()
