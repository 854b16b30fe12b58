"""Prepare: chunks of records go through the worker pool and come back, in order, as samples of known cost."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from odb_stream.errors import OdbStreamError
from odb_stream.nodes.waits import Waits
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.sample import START, Drop, PreparedSample, ReadingPosition, Record, position_from, position_state
from odb_stream.workers.pool import WorkerPool


class Outcome(NamedTuple):
    """What became of a record: a sample, a drop, or the error that ends the stream."""

    record: Record
    result: PreparedSample | Drop | OdbStreamError


class PrepareRecords(BaseNode[Outcome]):
    """Keeps the pool busy with chunks ahead of what is asked for and yields one outcome a record."""

    def __init__(self, source: BaseNode[list[Record]], pool: WorkerPool, *, workers: int, waits: Waits) -> None:
        super().__init__()
        self._source = source
        self._pool = pool
        self._waits = waits
        self._most_ahead = 2 * workers + 1
        self._ahead: deque[tuple[list[Record], Future[PreparedChunk]]] = deque()
        self._outcomes: Iterator[Outcome] = iter(())
        self._source_ended = False
        self._position: ReadingPosition = START

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._ahead.clear()
        self._source.reset(initial_state)
        self._outcomes = iter(())
        self._source_ended = False
        if initial_state:
            self._position = position_from(initial_state["position"])

    def next(self) -> Outcome:
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
            self._submit()
            self._outcomes = map(Outcome, records, chunk.outcomes(records))

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
