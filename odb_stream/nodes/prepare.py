"""PrepareRecords: sends chunks of records to the workers and yields samples of known cost in reading order."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from odb_stream.nodes.read import Read
from odb_stream.nodes.waits import Waits
from odb_stream.prepare.chunk import PreparedChunk, Result
from odb_stream.sample import START, ReadingPosition, Record, position_state
from odb_stream.workers.pool import WorkerPool


class RecordOutcome(NamedTuple):
    """A record and what became of it: a sample, a drop, or the error that ends the stream."""

    record: Record
    result: Result


class PrepareRecords(BaseNode[RecordOutcome]):
    """Yields one outcome for each record of ``source``, and keeps the pool busy with chunks ahead of demand.

    A torchdata node: its state is the position after the last record that it yielded. Chunks that the pool still
    prepares are not part of it; a restored node reads them again.
    """

    def __init__(self, source: Read, pool: WorkerPool, *, workers: int, waits: Waits) -> None:
        super().__init__()
        self._source = source
        self._pool = pool
        self._waits = waits
        # Two chunks for each worker, so that none waits for its next one, and one that is being taken apart here.
        self._most_ahead = 2 * workers + 1
        self._ahead: deque[tuple[list[Record], Future[PreparedChunk]]] = deque()
        self._outcomes: Iterator[RecordOutcome] = iter(())
        self._source_ended = False
        self._position: ReadingPosition = START

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._source.reset(initial_state)
        self._position = self._source.position
        self._ahead.clear()
        self._outcomes = iter(())
        self._source_ended = False

    def next(self) -> RecordOutcome:
        while True:
            outcome = next(self._outcomes, None)
            if outcome is not None:
                self._position = outcome.record.position
                return outcome
            self._submit()
            if not self._ahead:
                raise StopIteration
            records, future = self._ahead.popleft()
            with self._waits.on("workers"):
                chunk = self._pool.wait(future)
            # Refill before this chunk is unpacked: the workers continue while packing takes its samples.
            self._submit()
            self._outcomes = map(RecordOutcome, records, chunk.results(records))

    def get_state(self) -> dict[str, Any]:
        return {"position": position_state(self._position)}

    def _submit(self) -> None:
        while not self._source_ended and len(self._ahead) < self._most_ahead:
            try:
                records = next(self._source)
            except StopIteration:
                self._source_ended = True
                return
            self._ahead.append((records, self._pool.submit(records)))
