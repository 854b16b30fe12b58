"""Reads and prepares the first records of an epoch, as a loader on a single rank does, and collects their figures."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from odb_stream.config import World
from odb_stream.errors import ConfigError, OdbStreamError, StageError
from odb_stream.prepare.chunk import PreparedChunk
from odb_stream.prepare.clock import NOTHING, Clock, Spent, TimedPart
from odb_stream.prepare.records import Prepare, prepare_for
from odb_stream.sample import Drop, PreparedSample, Record
from odb_stream.sources.pipeline import Pipeline
from odb_stream.sources.source import Reading
from odb_stream.stages.images.files import measure
from odb_stream.workers.pool import WorkerPool

CHUNK = 32
"""Number of records sent to a worker at once."""
MOST_DECODED = 64
"""Number of images kept to time their decoding, rounded up to whole samples."""

ReportProgress = Callable[[str, int, int | None], None]
"""Called with the name of the current task, how much of it is done, and how much there is (None if unknown)."""


@dataclass
class Collected:
    """The figures of the records that were read. A list has one entry per kept sample unless stated otherwise.

    ``records`` counts the records read, ``reasons`` the drops by reason; ``examples`` holds the first detail of each
    reason. ``ended`` is True if the epoch was read to its end; ``epoch`` is its number of records, if known. ``files``
    has one entry per image: bytes, width and height of the upright image in its file, patches and tokens that the model
    gets. ``to_decode`` holds a few samples with images.
    """

    names: tuple[str, ...]
    epoch: int | None = None
    ended: bool = False
    read_seconds: float = 0.0
    records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    supervised: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)
    files: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    to_decode: list[PreparedSample] = field(default_factory=list)
    spent: dict[TimedPart, Spent] = field(default_factory=dict)

    @property
    def epoch_samples(self) -> int | None:
        """Samples kept in the whole epoch if drops stay as frequent as so far; None if its size is unknown."""
        epoch = self.records if self.ended else self.epoch
        return None if epoch is None else round(epoch * len(self.lengths) / self.records)

    def chunks(self, reading: Reading, samples: int | None) -> Iterator[list[Record]]:
        """The first ``samples`` records in chunks; notes how long reading took, and whether the epoch ended."""
        records = iter(reading.records())
        left = samples
        while left is None or left > 0:
            wanted = CHUNK if left is None else min(CHUNK, left)
            started = time.perf_counter()
            chunk = list(islice(records, wanted))
            self.read_seconds += time.perf_counter() - started
            if chunk:
                yield chunk
            if len(chunk) < wanted:
                self.ended = True
                return
            left = None if left is None else left - wanted
        # Without reading on nothing shows the end, but an epoch of exactly this many records is over.
        self.ended = reading.samples == samples

    def enter(self, records: Sequence[Record], chunk: PreparedChunk) -> None:
        """Collect the figures of a prepared chunk. Raises the error in it, as a run would."""
        # Not strict: a chunk ends at its first failure.
        for record, result in zip(records, chunk.results(records), strict=False):
            if isinstance(result, OdbStreamError):
                raise result
            self.records += 1
            if isinstance(result, Drop):
                self.reasons[result.reason] += 1
                self.examples.setdefault(result.reason, result.detail or record.where)
            else:
                self._keep(result)
        for part, more in (chunk.spent or {}).items():
            self.spent[part] = self.spent.get(part, NOTHING).plus(more)

    def _keep(self, sample: PreparedSample) -> None:
        self.lengths.append(sample.length)
        self.supervised.append(sample.supervised)
        self.sources.append(sample.ref.source)
        self.images.append(len(sample.images))
        self.held_bytes.append(held_bytes(sample))
        for image in sample.images:
            width, height = measure(image.data, pixel_limit=2**62)  # the pipeline has applied its own limit already
            self.files.append((image.data.nbytes, width, height, image.patches, image.features))
        if sample.images and sum(len(one.images) for one in self.to_decode) < MOST_DECODED:
            self.to_decode.append(sample)


def collect(
    pipeline: Pipeline, *, samples: int | None, seed: int, workers: int, report_progress: ReportProgress | None
) -> tuple[Collected, Prepare]:
    """Prepare the first ``samples`` records in the order of the first epoch (None: all of them).

    Raises:
        ConfigError: the source is empty.
        StageError: every sample was dropped, or a stage failed. Reading and preparing raise their own errors.
    """
    source = pipeline.source.open()
    reading = source.reading(World(), seed=seed, epoch=0)
    prepare = prepare_for(pipeline, seed, clock=Clock())
    collected = Collected(source.names, reading.samples)
    known = [number for number in (samples, reading.samples) if number is not None]
    total = min(known, default=None)
    with WorkerPool(prepare, workers) as pool:
        for records, chunk in _prepared(collected.chunks(reading, samples), pool, workers):
            collected.enter(records, chunk)
            if report_progress is not None:
                report_progress("reading and preparing", collected.records, total)
    if not collected.records:
        names = ", ".join(source.names)
        raise ConfigError(f"nothing to inspect: the epoch of {names} contains no sample; check the data")
    if not collected.lengths:
        reasons = "; ".join(
            f"{reason}: {count}, first: {collected.examples[reason]}"
            for reason, count in collected.reasons.most_common()
        )
        raise StageError(f"nothing to inspect: all {collected.records} samples read were dropped ({reasons})")
    return collected, prepare


def _prepared(
    chunks: Iterator[list[Record]], pool: WorkerPool, workers: int
) -> Iterator[tuple[list[Record], PreparedChunk]]:
    """Chunks in order with their prepared samples; a bounded number of chunks is in flight at once."""
    ahead: deque[tuple[list[Record], Future[PreparedChunk]]] = deque()
    for records in chunks:
        ahead.append((records, pool.submit(records)))
        # Two chunks per worker keep the workers busy; all chunks at once would fill the memory.
        if len(ahead) > 2 * workers:
            done, future = ahead.popleft()
            yield done, pool.wait(future)
    for done, future in ahead:
        yield done, pool.wait(future)


def held_bytes(sample: PreparedSample) -> int:
    """Bytes that a sample takes in the window: its rows of integers, and its images as compressed files."""
    rows = (sample.input_ids, sample.labels, sample.token_types, sample.rope)
    return sum(row.nbytes for row in rows if row is not None) + sum(image.data.nbytes for image in sample.images)
