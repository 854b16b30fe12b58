"""Seconds that each stage of a running loader spent waiting; for the report only, never for a decision."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """Accumulates waiting time by stage name.

    ``trainer``: the training loop waited for a batch. ``workers``: packing waited for prepared samples. ``read``:
    packing waited for records. ``peers``: the plan of the next steps, or a group, waited for other ranks. ``room``:
    finished steps waited for the training loop to take them.
    """

    def __init__(self) -> None:
        self.seconds = {"trainer": 0.0, "workers": 0.0, "read": 0.0, "peers": 0.0, "room": 0.0}

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Count the time of the block under a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started
