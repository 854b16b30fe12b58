"""Read: a source's records of one rank and epoch, in chunks that are worth sending to a worker."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata.nodes import BaseNode

from odb_stream.batching.window import ramp
from odb_stream.nodes.waits import Waits
from odb_stream.sample import START, ReadingPosition, Record, position_from, position_state
from odb_stream.sources.source import Reading

CHUNK = 64
"""Records in a chunk: one by one, the transport between processes would cost more than the work."""
FIRST_CHUNK = 8
"""Chunks start small, so that all workers share the first window."""


class Read(BaseNode[list[Record]]):
    """Yields lists of records from a position on. Chunk sizes change nothing but speed."""

    def __init__(self, reading: Reading, waits: Waits, start: ReadingPosition = START) -> None:
        super().__init__()
        self._reading = reading
        self._waits = waits
        self._start = start
        self._records: Iterator[Record] = iter(())
        self._position = start
        self._chunks = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._position = position_from(initial_state["position"]) if initial_state else self._start
        self._records = iter(self._reading.records(self._position))
        self._chunks = 0

    def next(self) -> list[Record]:
        with self._waits.on("read"):
            records = list(islice(self._records, ramp(CHUNK, FIRST_CHUNK, self._chunks // 4)))
        if not records:
            raise StopIteration
        self._chunks += 1
        self._position = records[-1].position
        return records

    def get_state(self) -> dict[str, Any]:
        return {"position": position_state(self._position)}
