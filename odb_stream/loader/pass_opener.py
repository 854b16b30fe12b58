"""PassOpener: how one rank reads its data, pass by pass, and reads single samples again after a resume."""

from collections.abc import Iterator, Sequence

from odb_stream.checkpoint.state import HeldSample, RemainingRows
from odb_stream.errors import OdbStreamError, StateError
from odb_stream.loader.context import LoaderContext
from odb_stream.nodes.prepare import PrepareRecords, RecordOutcome
from odb_stream.nodes.read import CHUNK, Read
from odb_stream.nodes.waits import Waits
from odb_stream.sample import Drop, PreparedSample, ReadingPosition
from odb_stream.sources.source import Reading


class PassOpener:
    """Opens the passes of one rank over its data, or over this rank's share of what ``remaining`` lists.

    ``first`` is the reading of epoch 0, which was opened when the loader was built; it serves the first pass if that is
    epoch 0's. The background thread holds this object, so it must not refer to the pipeline: a forgotten pipeline could
    not be collected then, and its thread would never end.
    """

    def __init__(
        self, context: LoaderContext, waits: Waits, *, remaining: RemainingRows | None, first: Reading | None
    ) -> None:
        self._context = context
        self._waits = waits
        self._remaining = remaining
        self._first = first
        self._current: Reading | None = None
        self.samples: int | None = None
        """Records of the first pass that was opened; None when only reading can tell."""

    def open(self, number: int, position: ReadingPosition) -> Iterator[RecordOutcome]:
        """The prepared records of pass ``number``, in order, from a position on."""
        reading = self._reading(number)
        if self._current is None:
            self.samples = reading.samples
        self._current = reading
        read = Read(reading, self._waits, position)
        return PrepareRecords(read, self._context.pool, workers=self._context.settings.workers, waits=self._waits)

    def reread(self, held: Sequence[HeldSample]) -> list[PreparedSample]:
        """Samples that this rank held before a resume, read and prepared again.

        Raises StateError for a sample that is dropped now: the run cannot continue exactly without it.
        """
        if self._current is None or not held:
            return []
        pool = self._context.pool
        records = self._current.fetch_all(held)
        chunks = [records[first : first + CHUNK] for first in range(0, len(records), CHUNK)]
        samples = []
        # All chunks are submitted before the first is waited for, so that every worker has some.
        for chunk, future in [(chunk, pool.submit(chunk)) for chunk in chunks]:
            # Not strict: a chunk ends at its first failure, which is raised here.
            for record, result in zip(chunk, pool.wait(future).results(chunk), strict=False):
                if isinstance(result, OdbStreamError):
                    raise result
                if isinstance(result, Drop):
                    raise StateError(
                        f"{record.where} was held when the state was saved, but is now dropped ({result.reason} "
                        f"{result.detail}): resume with the same data, stages and versions"
                    )
                samples.append(result)
        return samples

    def _reading(self, number: int) -> Reading:
        context = self._context
        if self._remaining is not None:
            return context.source.share_of(self._remaining, context.world, seed=context.settings.seed)
        first, self._first = self._first, None
        if number == 0 and first is not None:
            return first
        return context.source.reading(context.world, seed=context.settings.seed, epoch=number)
