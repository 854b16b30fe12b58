"""Read: the records of one rank and pass, in chunks that are worth sending to a worker."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata.nodes import BaseNode

from odb_stream.batching.window import ramp
from odb_stream.nodes.waits import Waits
from odb_stream.sample import START, ReadingPosition, Record, position_from, position_state
from odb_stream.sources.source import Reading

CHUNK = 64
"""Records in a chunk. Sent one by one, records would cost more in transport than in preparation."""
FIRST_CHUNK = 8
"""Records in the first chunks: small ones let all workers share the first window, so the first batch comes sooner."""
CHUNKS_OF_A_SIZE = 4
"""Chunks after which the size doubles."""


class Read(BaseNode[list[Record]]):
    """Yields lists of records, from ``start`` on. How records are cut into chunks affects speed only.

    A torchdata node: its state is the position after the last record that it yielded.
    """

    def __init__(self, reading: Reading, waits: Waits, start: ReadingPosition = START) -> None:
        super().__init__()
        self._reading = reading
        self._waits = waits
        self._start = start
        self.position = start
        """The reading position after the last record that was yielded."""
        self._records: Iterator[Record] = iter(())
        self._chunks = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.position = position_from(initial_state["position"]) if initial_state else self._start
        self._records = self._reading.records(self.position)
        self._chunks = 0

    def next(self) -> list[Record]:
        with self._waits.on("read"):
            records = list(islice(self._records, ramp(CHUNK, FIRST_CHUNK, self._chunks // CHUNKS_OF_A_SIZE)))
        if not records:
            raise StopIteration
        self._chunks += 1
        self.position = records[-1].position
        return records

    def get_state(self) -> dict[str, Any]:
        return {"position": position_state(self.position)}
