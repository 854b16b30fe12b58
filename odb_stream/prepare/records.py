"""From a record to a sample that is ready for a batch: open it, run the stages, check the result."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odb_stream.errors import OdbStreamError, StageError
from odb_stream.prepare.chunk import PreparedChunk, Result
from odb_stream.prepare.clock import OPENER, WHOLE, Clock
from odb_stream.prepare.decoding import Decoded, decode_images
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, PreparedImage, PreparedSample, Record, Sample, Stage
from odb_stream.sources.mix import Mix
from odb_stream.sources.pipeline import Pipeline
from odb_stream.stages.images.files import PlannedImage

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class SourceStages:
    """How the records of one source become samples: ``opener`` gives the fields, the stages run in order."""

    opener: Callable[[Record], Mapping[str, Any] | Drop]
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Prepare:
    """Turns records into batch-ready samples: a pure function of the record, picklable.

    ``sources`` holds the opener and stages of each source; ``record.ref.source`` selects among them. ``seed`` is the
    run's. With a ``clock``, every chunk also holds how long each opener and stage took.
    """

    sources: tuple[SourceStages, ...]
    seed: int
    clock: Clock | None = field(default=None, compare=False, repr=False)

    def record(self, record: Record) -> PreparedSample | Drop:
        """Prepare one record. Raises StageError (or another error of the hierarchy that a stage raised)."""
        if self.clock is None:
            return self._record(record)
        with self.clock.on((record.ref.source, WHOLE)):
            return self._record(record)

    def chunk(self, records: Sequence[Record]) -> PreparedChunk:
        """Prepare records in order, up to the first failure; see :class:`PreparedChunk`."""
        if self.clock is not None:
            self.clock.warm_up(lambda: self.record(records[0]))
        results: list[Result] = []
        for record in records:
            try:
                results.append(self.record(record))
            except OdbStreamError as error:
                # The run ends with this error once the samples before it are used up, so the rest is not prepared.
                results.append(error)
                break
        return PreparedChunk.pack(results, records, None if self.clock is None else self.clock.take())

    def decode(self, source: int, images: Sequence[PreparedImage], where: str = "a sample") -> Decoded:
        """The decoded images of one sample of a source, or a Drop if one proves broken; ``where`` is for messages."""
        try:
            return decode_images(self.sources[source].stages, images)
        except OdbStreamError:
            raise
        except Exception as error:  # a user's transform may raise anything
            raise StageError(
                f"an image transform raised {type(error).__name__}: {error}, when the images of {where} were decoded: "
                "its apply() must handle every image for which plan() returned a size."
            ) from error

    def _record(self, record: Record) -> PreparedSample | Drop:
        if record.damage is not None:
            return record.damage
        source = self.sources[record.ref.source]
        fields = self._call(source.opener, record, OPENER)
        if isinstance(fields, Drop):
            return fields
        sample = Sample.of(record, fields, seed=self.seed)
        for place, stage in enumerate(source.stages):
            sample.stage = place
            result = self._call(stage, sample, place + 1)
            if isinstance(result, Drop):
                return result
            # A stage may return a bare dict (or a Sample it made itself): it takes over this sample's identity.
            if result is not sample:
                sample = sample.with_fields(result)
        return finish(sample)

    def _call(self, stage: Callable[[Any], Any], argument: Record | Sample, part: int) -> Mapping[str, Any] | Drop:
        """Call an opener or a stage, timed if there is a clock. All of them run through here."""
        if self.clock is None:
            return call_stage(stage, argument)
        with self.clock.on((argument.ref.source, part)):
            return call_stage(stage, argument)


def prepare_for(pipeline: Pipeline, seed: int, *, clock: Clock | None = None) -> Prepare:
    """What the workers of a pipeline run: the stages of each source of a mix, or those of the only source."""
    source = pipeline.source
    if not isinstance(source, Mix):
        return Prepare((SourceStages(source.opener(), pipeline.stages),), seed, clock)
    # The stages of the mix's own pipeline follow those of each source, so that each entry is complete by itself.
    parts = tuple(SourceStages(part.source.opener(), (*part.stages, *pipeline.stages)) for part in source.pipelines)
    return Prepare(parts, seed, clock)


def call_stage(stage: Callable[[Any], Any], argument: Record | Sample) -> Mapping[str, Any] | Drop:
    """Call an opener with a record, or a stage with a sample; whatever it raises becomes an error of the hierarchy."""
    try:
        result = stage(argument)
    except OdbStreamError:
        raise
    except Exception as error:  # a user's callable may raise anything
        raise StageError(
            f"stage {stage_name(stage)} raised {type(error).__name__}: {error}, at {argument.where}. "
            "To leave such a sample out, return a Drop with a reason."
        ) from error
    if isinstance(result, Mapping | Drop):
        return result
    raise StageError(
        f"stage {stage_name(stage)} returned {type(result).__name__}, at {argument.where}: a stage returns the sample, "
        "a mapping of its fields, or a Drop with a reason (to leave the sample out)."
    )


def stage_name(stage: object) -> str:
    """The name of a stage for messages: its type, or the qualified name of a function."""
    if isinstance(stage, functools.partial):
        return stage_name(stage.func)
    name = getattr(stage, "__qualname__", None)
    return name if isinstance(name, str) else type(stage).__qualname__


def finish(sample: Sample) -> PreparedSample | Drop:
    """Turn a sample's ``input_ids`` and ``labels`` (default: a copy of the ids) into a PreparedSample.

    Returns a Drop for ``empty`` (no tokens) and ``nothing_supervised`` (no label after the first token).
    Raises StageError if a field is missing or is not a row of int32-sized integers, if the two differ in length, and if
    the tokens of an image were not counted or are not all there.
    """
    if "input_ids" not in sample:
        raise StageError(
            f"no stage produced input_ids, at {sample.where}: add Tokenize to the pipeline, or give input_ids in the "
            f"dataset's items (fields present: {', '.join(sorted(map(str, sample))) or 'none'})."
        )
    input_ids = _int32_row(sample, "input_ids")
    labels = _int32_row(sample, "labels") if "labels" in sample else input_ids.copy()
    if len(labels) != len(input_ids):
        raise StageError(
            f"labels hold {len(labels)} values but input_ids {len(input_ids)}, at {sample.where}: give one label per "
            f"token, {IGNORED_LABEL} where there is no loss."
        )
    if not len(input_ids):
        return Drop("empty", f"no tokens, at {sample.where}")
    # Nothing predicts the first token of a row, and in a packed row it would be predicted from the previous sample.
    labels[0] = IGNORED_LABEL
    supervised = int(np.count_nonzero(labels != IGNORED_LABEL))
    if not supervised:
        return Drop("nothing_supervised", f"no label with loss after the first token, at {sample.where}")
    types = _int32_row(sample, "mm_token_type_ids") if "mm_token_type_ids" in sample else None
    rope = np.asarray(sample["rope"], dtype=np.int32) if "rope" in sample else None
    for name, value, shape in (("mm_token_type_ids", types, input_ids.shape), ("rope", rope, (3, len(input_ids)))):
        if value is not None and value.shape != shape:
            raise StageError(
                f"{name} is of shape {value.shape}, but {shape} belongs to {len(input_ids)} input_ids, at "
                f"{sample.where}: a stage after ExpandVisualTokens must not change the number of tokens."
            )
    images = _images(sample, types)
    return PreparedSample(sample.ref, input_ids, labels, supervised, images, types, rope, epoch=sample.epoch)


def _images(sample: Sample, types: IntArray | None) -> tuple[PreparedImage, ...]:
    """The images of a sample. Raises StageError for uncounted images and for missing or surplus image tokens."""
    images: list[PreparedImage] = []
    for image in sample.get("images") or ():
        if not isinstance(image, PlannedImage) or image.grid is None:
            raise StageError(
                f"the sample holds images whose tokens were not counted, at {sample.where}: add MeasureImages and "
                "ExpandVisualTokens to the pipeline, or take the field 'images' out."
            )
        images.append(PreparedImage(np.frombuffer(image.data, np.uint8), image.ops, image.grid, image.features))
    features = sum(image.features for image in images)
    if types is not None and np.count_nonzero(types == 1) != features:
        raise StageError(
            f"{np.count_nonzero(types == 1)} image tokens for {features} image features, at {sample.where}: a stage "
            "after ExpandVisualTokens may change neither."
        )
    return tuple(images)


def _int32_row(sample: Sample, name: str) -> IntArray:
    """A field as a new int32 array of shape (length,), from a list, tuple, array or CPU tensor of integers.

    A new one, because labels are changed here and the array may be the user's own.
    """
    value = sample[name]
    try:
        row = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StageError(
            f"{name} is {type(value).__name__} that does not convert to an array ({error}), at {sample.where}: "
            "give a list, array or CPU tensor of integers."
        ) from error
    if row.ndim != 1 or (row.dtype.kind not in "iu" and row.size):
        raise StageError(
            f"{name} is {type(value).__name__} of shape {row.shape} and type {row.dtype}, at {sample.where}: "
            "give integers in one dimension, (length,)."
        )
    if row.dtype != np.int32 and row.size and (row.min() < INT32.min or row.max() > INT32.max):
        raise StageError(f"{name} holds {row.min()} to {row.max()}, beyond 32-bit integers, at {sample.where}.")
    return row.astype(np.int32)
