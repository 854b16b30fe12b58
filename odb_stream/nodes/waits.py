"""How long each part of a running loader waited. For the report only: no decision may depend on time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """Seconds of waiting, by what was waited for.

    ``trainer``: the training loop waited for a batch. ``workers``: packing waited for prepared samples or decoded
    images. ``read``: packing waited for records. ``peers``: planning or an exchange waited for other ranks. ``room``:
    finished batches waited for the training loop to take them.
    """

    def __init__(self) -> None:
        self.seconds = {"trainer": 0.0, "workers": 0.0, "read": 0.0, "peers": 0.0, "room": 0.0}

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to this entry."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started
