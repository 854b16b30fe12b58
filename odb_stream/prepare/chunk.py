"""The outcomes of a chunk of records in few flat arrays: what travels between processes."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odb_stream.errors import OdbStreamError
from odb_stream.prepare.vision_part import VisionPart
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, PreparedSample, Record

Outcome = PreparedSample | Drop | OdbStreamError
"""What became of a record."""


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """The outcomes of a chunk of records in few flat arrays, which travel between processes cheaply.

    ``input_ids`` and ``labels`` are int32 of shape (tokens,), all samples one after another; ``labels`` is None when
    they equal the ids in all but the first of each sample. ``lengths`` and ``supervised`` have one number a sample.
    ``drops`` maps a record's place in the chunk to its Drop. A ``failure`` belongs to the record after those, and no
    later record was prepared. References stay with whoever holds the records.

    ``vision`` holds what samples of a vision pipeline have beyond that.

    :meth:`pack` and :meth:`outcomes` are each other's inverse, and the only places that know this layout.
    """

    input_ids: IntArray
    labels: IntArray | None
    lengths: IntArray
    supervised: IntArray
    drops: dict[int, Drop]
    failure: OdbStreamError | None
    vision: VisionPart | None

    @classmethod
    def pack(cls, outcomes: Sequence[Outcome], records: Sequence[Record]) -> "PreparedChunk":
        """Pack outcomes in the order of their records; only the last may be an error."""
        samples = [outcome for outcome in outcomes if isinstance(outcome, PreparedSample)]
        input_ids = _flat([sample.input_ids for sample in samples])
        labels = _flat([sample.labels for sample in samples])
        lengths = np.array([len(sample.input_ids) for sample in samples], dtype=np.int32)
        return cls(
            input_ids=input_ids,
            labels=None if np.array_equal(labels, _default_labels(input_ids, lengths)) else labels,
            lengths=lengths,
            supervised=np.array([sample.supervised for sample in samples], dtype=np.int32),
            drops={place: outcome for place, outcome in enumerate(outcomes) if isinstance(outcome, Drop)},
            failure=outcomes[-1] if outcomes and isinstance(outcomes[-1], OdbStreamError) else None,
            vision=VisionPart.pack(samples, records_of_samples(outcomes, records)),
        )

    def outcomes(self, records: Sequence[Record]) -> Iterator[Outcome]:
        """The outcomes again, one for each of the records that this chunk was made of, up to a failure.

        The arrays of the samples are views into the chunk's.
        """
        labels = _default_labels(self.input_ids, self.lengths) if self.labels is None else self.labels
        done = len(self.lengths) + len(self.drops)
        if done > len(records) or (done < len(records) and self.failure is None):
            raise ValueError(f"a chunk of {done} outcomes does not belong to these {len(records)} records")
        samples = zip(np.cumsum(self.lengths).tolist(), self.lengths.tolist(), self.supervised.tolist(), strict=True)
        vision = None if self.vision is None else self.vision.unpack()
        for place in range(done):
            if (drop := self.drops.get(place)) is not None:
                yield drop
                continue
            stop, length, supervised = next(samples)
            span = slice(stop - length, stop)
            record = records[place]
            sample = PreparedSample(
                record.ref, self.input_ids[span], labels[span], supervised, epoch=record.epoch
            )
            yield sample if vision is None else vision(sample, span, record)
        if self.failure is not None:
            yield self.failure

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields, with the failure in a form that survives the journey."""
        failure = None if self.failure is None else portable(self.failure)
        arrays = (self.input_ids, self.labels, self.lengths, self.supervised)
        return PreparedChunk, (*arrays, self.drops, failure, self.vision)


def portable(error: OdbStreamError) -> OdbStreamError:
    """The same error in a form that always pickles: a class of this package, the text, and the traceback as a note.

    A cause may not pickle, and a class of the user's may not unpickle, so neither travels itself.
    """
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == OdbStreamError.__module__)
    copy: OdbStreamError = kind(str(error))
    copy.add_note("Traceback in the worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return copy


def records_of_samples(outcomes: Sequence[Outcome], records: Sequence[Record]) -> list[Record]:
    """The records whose outcome is a sample."""
    pairs = zip(outcomes, records, strict=False)
    return [record for outcome, record in pairs if isinstance(outcome, PreparedSample)]


def _flat(rows: list[IntArray]) -> IntArray:
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)


def _default_labels(input_ids: IntArray, lengths: IntArray) -> IntArray:
    """The labels of samples without labels of their own: the ids, the first of each sample ignored."""
    labels = input_ids.copy()
    labels[np.cumsum(lengths) - lengths] = IGNORED_LABEL
    return labels
