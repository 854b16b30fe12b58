"""From a record to a sample ready for a batch: open it, run the stages, check the result; alone or by the chunk."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odb_stream.errors import OdbStreamError, StageError
from odb_stream.prepare.chunk import Outcome, PreparedChunk
from odb_stream.prepare.decoding import Decoded, decode_images
from odb_stream.sample import (
    IGNORED_LABEL,
    Drop,
    FloatArray,
    IntArray,
    PreparedImage,
    PreparedSample,
    Record,
    Sample,
    Stage,
)
from odb_stream.sources.mix import Mix
from odb_stream.sources.pipeline import Pipeline
from odb_stream.stages.images.files import PlannedImage

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Lane:
    """How the records of one source become samples: ``opener`` gives the fields, the stages run in order."""

    opener: Callable[[Record], Mapping[str, Any] | Drop]
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Prepare:
    """The whole way of a record into a batch-ready sample: a pure function of the record, picklable.

    ``lanes`` holds one lane a source; ``record.ref.source`` selects it. ``seed`` is the run's.
    """

    lanes: tuple[Lane, ...]
    seed: int

    def record(self, record: Record) -> PreparedSample | Drop:
        """Prepare one record. Raises StageError (or another error of the hierarchy that a stage raised)."""
        if record.damage is not None:
            return record.damage
        lane = self.lanes[record.ref.source]
        fields = self.call(lane.opener, record, record.where)
        if isinstance(fields, Drop):
            return fields
        sample = Sample.of(record, fields, seed=self.seed)
        for place, stage in enumerate(lane.stages):
            sample.stage = place
            result = self.call(stage, sample, record.where)
            if isinstance(result, Drop):
                return result
            if result is not sample:
                sample = sample.with_fields(result)
        return finish(sample)

    def call(self, stage: Callable[[Any], Any], argument: Record | Sample, where: str) -> Mapping[str, Any] | Drop:
        """Call an opener with a record, or a stage with a sample: the one place through which all of them run.

        Whatever goes wrong in it leaves as an error of the hierarchy.
        """
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

    def chunk(self, records: Sequence[Record]) -> PreparedChunk:
        """Prepare records in order, up to the first failure; see :class:`PreparedChunk`."""
        outcomes: list[Outcome] = []
        for record in records:
            try:
                outcomes.append(self.record(record))
            except OdbStreamError as error:
                outcomes.append(error)
                break
        return PreparedChunk.pack(outcomes, records)

    def decode(self, source: int, images: Sequence[PreparedImage]) -> FloatArray | Drop:
        """The pixels of one sample's images, or a Drop when one proves broken."""
        decoded = self.decode_compactly(source, images)
        return decoded if isinstance(decoded, Drop) else decoded.pixels()

    def decode_compactly(self, source: int, images: Sequence[PreparedImage]) -> Decoded:
        """The same in the form that travels between processes."""
        try:
            return decode_images(self.lanes[source].stages, images)
        except OdbStreamError:
            raise
        except Exception as error:  # a user's transform may raise anything
            raise StageError(f"an image transform raised {type(error).__name__}: {error}, on decoding") from error


def prepare_for(pipeline: Pipeline, seed: int) -> Prepare:
    """What the workers of a pipeline run: one lane for each source of a mix, or the only one."""
    source = pipeline.source
    if not isinstance(source, Mix):
        return Prepare((Lane(source.opener(), pipeline.stages),), seed)
    parts = source.pipelines
    # The stages of a mix's own pipeline follow those of each source, so each lane is complete by itself.
    return Prepare(tuple(Lane(one.source.opener(), (*one.stages, *pipeline.stages)) for one in parts), seed)


def stage_name(stage: object) -> str:
    """The name of a stage for messages: its type, or for a function its qualified name."""
    if isinstance(stage, functools.partial):
        return stage_name(stage.func)
    name = getattr(stage, "__qualname__", None)
    return name if isinstance(name, str) else type(stage).__qualname__


def finish(sample: Sample) -> PreparedSample | Drop:
    """Turn a sample's ``input_ids`` and ``labels`` (default: a copy of the ids) into a PreparedSample.

    The first label is ignored, for in a packed row it would be predicted from the sample before. Raises StageError
    when a field is missing, is not a row of int32-sized integers, or the two differ in length; and for images whose
    tokens were not counted, or whose tokens are not all there.
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
    """The counted images of a sample. Raises StageError for uncounted ones and for missing or surplus image tokens."""
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
            "after ExpandVisualTokens must change neither."
        )
    return tuple(images)


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
