"""From a record to a sample ready for a batch: open it, run the stages, check the result; alone or by the chunk."""

import functools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odb_stream.errors import OdbStreamError, StageError
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, PreparedSample, Record, Sample

Stage = Callable[[Sample], Mapping[str, Any] | Drop]
"""Any picklable callable; a returned mapping becomes the same sample with those fields."""

Outcome = PreparedSample | Drop | OdbStreamError
"""What became of a record."""

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Lane:
    """How the records of one source become samples: ``opener`` gives the fields, the stages run in order."""

    opener: Callable[[Record], Mapping[str, Any] | Drop]
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Prepare:
    """The whole way of a record into a batch-ready sample: a pure function of (record, epoch), picklable.

    ``lanes`` holds one lane a source; ``record.ref.source`` selects it. ``seed`` is the run's.
    """

    lanes: tuple[Lane, ...]
    seed: int

    def record(self, record: Record, epoch: int) -> PreparedSample | Drop:
        """Prepare one record. Raises StageError (or another error of the hierarchy that a stage raised)."""
        lane = self.lanes[record.ref.source]
        fields = _call(lane.opener, record, record.where)
        if isinstance(fields, Drop):
            return fields
        sample = Sample.of(record, fields, seed=self.seed, epoch=epoch)
        for stage in lane.stages:
            result = _call(stage, sample, record.where)
            if isinstance(result, Drop):
                return result
            if result is not sample:
                sample = sample.with_fields(result)
        return finish(sample)

    def chunk(self, records: Sequence[Record], epoch: int) -> "PreparedChunk":
        """Prepare records in order, up to the first failure; see :class:`PreparedChunk`."""
        outcomes: list[Outcome] = []
        for record in records:
            try:
                outcomes.append(self.record(record, epoch))
            except OdbStreamError as error:
                outcomes.append(error)
                break
        return PreparedChunk.pack(outcomes)


def stage_name(stage: object) -> str:
    """The name of a stage for messages: its type, or for a function its qualified name."""
    if isinstance(stage, functools.partial):
        return stage_name(stage.func)
    name = getattr(stage, "__qualname__", None)
    return name if isinstance(name, str) else type(stage).__qualname__


def _call(stage: Callable[[Any], Any], argument: Record | Sample, where: str) -> Mapping[str, Any] | Drop:
    """Call an opener or a stage; whatever goes wrong in it leaves as an error of the hierarchy."""
    try:
        result = stage(argument)
    except OdbStreamError:
        raise
    except Exception as error:  # a user's callable may raise anything
        raise StageError(
            f"stage {stage_name(stage)} raised {type(error).__name__}: {error}, at {where}. "
            "To leave such a sample out, return a Drop with a reason."
        ) from error
    if isinstance(result, Mapping | Drop):
        return result
    raise StageError(
        f"stage {stage_name(stage)} returned {type(result).__name__}, at {where}: a stage returns the sample, "
        "a mapping of its fields, or a Drop with a reason (to leave the sample out)."
    )


def finish(sample: Sample) -> PreparedSample | Drop:
    """Turn a sample's ``input_ids`` and ``labels`` (default: a copy of the ids) into a PreparedSample.

    The first label is ignored, for in a packed row it would be predicted from the sample before. Raises StageError
    when a field is missing, is not a row of int32-sized integers, or the two differ in length.
    """
    if "input_ids" not in sample:
        raise StageError(
            f"no stage produced input_ids, at {sample.where}: add Tokenize to the pipeline, or give input_ids in the "
            f"dataset's items (fields there: {', '.join(sorted(map(str, sample))) or 'none'})."
        )
    input_ids = _int32_row(sample, "input_ids")
    labels = _int32_row(sample, "labels") if "labels" in sample else input_ids.copy()
    if len(labels) != len(input_ids):
        raise StageError(
            f"labels hold {len(labels)} values but input_ids {len(input_ids)}, at {sample.where}: give one label a "
            f"token, {IGNORED_LABEL} where there is no loss."
        )
    if not len(input_ids):
        return Drop("empty", f"no tokens, at {sample.where}")
    labels[0] = IGNORED_LABEL
    supervised = int(np.count_nonzero(labels != IGNORED_LABEL))
    if not supervised:
        return Drop("nothing_supervised", f"no label with loss after the first token, at {sample.where}")
    return PreparedSample(sample.ref, input_ids, labels, supervised)


def _int32_row(sample: Sample, field: str) -> IntArray:
    """A field as a new int32 array of shape (length,), from a list, tuple, array or CPU tensor of integers."""
    value = sample[field]
    try:
        row = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StageError(
            f"{field} is {type(value).__name__} that does not convert to an array ({error}), at {sample.where}: "
            "give a list, array or CPU tensor of integers."
        ) from error
    if row.ndim != 1 or (row.dtype.kind not in "iu" and row.size):
        raise StageError(
            f"{field} is {type(value).__name__} of shape {row.shape} and type {row.dtype}, at {sample.where}: "
            "give integers in one dimension, (length,)."
        )
    if row.dtype != np.int32 and row.size and (row.min() < INT32.min or row.max() > INT32.max):
        raise StageError(f"{field} holds {row.min()} to {row.max()}, beyond 32-bit integers, at {sample.where}.")
    return row.astype(np.int32)


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """The outcomes of a chunk of records in few flat arrays, which travel between processes cheaply.

    ``input_ids`` and ``labels`` are int32 of shape (tokens,), all samples one after another; ``labels`` is None when
    they equal the ids in all but the first of each sample. ``lengths`` and ``supervised`` have one number a sample.
    ``drops`` maps a record's place in the chunk to its Drop. A ``failure`` belongs to the record after those, and no
    later record was prepared. References stay with whoever holds the records.

    :meth:`pack` and :meth:`outcomes` are each other's inverse, and the only places that know this layout.
    """

    input_ids: IntArray
    labels: IntArray | None
    lengths: IntArray
    supervised: IntArray
    drops: dict[int, Drop]
    failure: OdbStreamError | None

    @classmethod
    def pack(cls, outcomes: Sequence[Outcome]) -> "PreparedChunk":
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
        for place in range(done):
            if (drop := self.drops.get(place)) is not None:
                yield drop
                continue
            stop, length, supervised = next(samples)
            span = slice(stop - length, stop)
            yield PreparedSample(records[place].ref, self.input_ids[span], labels[span], supervised)
        if self.failure is not None:
            yield self.failure

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields, with the failure in a form that survives the journey."""
        failure = None if self.failure is None else portable(self.failure)
        return PreparedChunk, (self.input_ids, self.labels, self.lengths, self.supervised, self.drops, failure)


def portable(error: OdbStreamError) -> OdbStreamError:
    """The same error in a form that always pickles: a class of this package, the text, and the traceback as a note.

    A cause may not pickle, and a class of the user's may not unpickle, so neither travels itself.
    """
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == OdbStreamError.__module__)
    copy: OdbStreamError = kind(str(error))
    copy.add_note("Traceback in the worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return copy


def _flat(rows: list[IntArray]) -> IntArray:
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)


def _default_labels(input_ids: IntArray, lengths: IntArray) -> IntArray:
    """The labels of samples without labels of their own: the ids, the first of each sample ignored."""
    labels = input_ids.copy()
    labels[np.cumsum(lengths) - lengths] = IGNORED_LABEL
    return labels
