"""PreparedChunk: what a worker sends back for a chunk of records, in a few flat arrays."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from odb_stream.errors import OdbStreamError
from odb_stream.prepare.clock import Spent, TimedPart
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, Op, PreparedImage, PreparedSample, Record
from odb_stream.stages.rope import rope_of

Result = PreparedSample | Drop | OdbStreamError
"""What became of a record."""


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """The results of a chunk of records in a few flat arrays.

    Thousands of small arrays would each be pickled with a header of its own: flat ones are a memory copy.

    ``input_ids`` and ``labels`` are int32 of shape (tokens,), one sample after another; ``labels`` is None if they
    equal the ids in all but the first token of each sample. ``lengths`` and ``supervised`` have one number per sample.
    ``drops`` maps a record's place in the chunk to its Drop. A ``failure`` belongs to the record after those; no later
    record was prepared. ``vision`` is what the samples of a vision pipeline have besides, ``spent`` the time of each
    part if a clock ran. References are not included: whoever holds the records has them.

    :meth:`pack` and :meth:`results` are each other's inverse, and the only places that know this layout.
    """

    input_ids: IntArray
    labels: IntArray | None
    lengths: IntArray
    supervised: IntArray
    drops: dict[int, Drop]
    failure: OdbStreamError | None
    vision: "VisionPart | None"
    spent: dict[TimedPart, Spent] | None = None

    @classmethod
    def pack(
        cls, results: Sequence[Result], records: Sequence[Record], spent: dict[TimedPart, Spent] | None = None
    ) -> "PreparedChunk":
        """Pack results in the order of their records; only the last may be an error."""
        samples = [result for result in results if isinstance(result, PreparedSample)]
        # Not strict: after a failure there are fewer results than records.
        pairs = zip(results, records, strict=False)
        origins = [record for result, record in pairs if isinstance(result, PreparedSample)]
        input_ids = _flat([sample.input_ids for sample in samples])
        labels = _flat([sample.labels for sample in samples])
        lengths = np.array([len(sample.input_ids) for sample in samples], dtype=np.int32)
        return cls(
            input_ids=input_ids,
            labels=None if np.array_equal(labels, _default_labels(input_ids, lengths)) else labels,
            lengths=lengths,
            supervised=np.array([sample.supervised for sample in samples], dtype=np.int32),
            drops={place: result for place, result in enumerate(results) if isinstance(result, Drop)},
            failure=results[-1] if results and isinstance(results[-1], OdbStreamError) else None,
            vision=VisionPart.pack(samples, origins),
            spent=spent,
        )

    def results(self, records: Sequence[Record]) -> Iterator[Result]:
        """The results again, one for each of the records that this chunk was made of, up to a failure.

        The arrays of the samples are views of the chunk's. Raises ValueError if the number of records differs.
        """
        labels = _default_labels(self.input_ids, self.lengths) if self.labels is None else self.labels
        done = len(self.lengths) + len(self.drops)
        if done > len(records) or (done < len(records) and self.failure is None):
            raise ValueError(f"a chunk of {done} results does not belong to these {len(records)} records")
        samples = zip(np.cumsum(self.lengths).tolist(), self.lengths.tolist(), self.supervised.tolist(), strict=True)
        vision = None if self.vision is None else self.vision.unpack()
        for place in range(done):
            if (drop := self.drops.get(place)) is not None:
                yield drop
                continue
            stop, length, supervised = next(samples)
            span = slice(stop - length, stop)
            record = records[place]
            sample = PreparedSample(record.ref, self.input_ids[span], labels[span], supervised, epoch=record.epoch)
            yield sample if vision is None else vision(sample, span, record)
        if self.failure is not None:
            yield self.failure

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields, with the failure in a form that always unpickles."""
        failure = None if self.failure is None else portable(self.failure)
        arrays = (self.input_ids, self.labels, self.lengths, self.supervised)
        return PreparedChunk, (*arrays, self.drops, failure, self.vision, self.spent)


@dataclass(frozen=True, slots=True)
class VisionPart:
    """What the samples of a vision pipeline add to a chunk, in flat arrays over all samples.

    ``counts`` has the number of images of each sample; ``grids``, ``features``, ``ops`` and ``data`` have one entry per
    image. An image's data are the name of a member of its record, or bytes if a stage made others. ``token_types`` is
    int8 of shape (tokens,), ``rope`` int32 of shape (3, tokens); both are None for families of models without them.
    """

    counts: list[int]
    grids: list[tuple[int, int, int]]
    features: list[int]
    ops: list[tuple[Op, ...]]
    data: list[str | bytes]
    token_types: npt.NDArray[np.int8] | None
    rope: IntArray | None

    @classmethod
    def pack(cls, samples: Sequence[PreparedSample], records: Sequence[Record]) -> "VisionPart | None":
        """The part of these samples, made from these records; None for a pipeline without vision."""
        has_types = any(sample.token_types is not None for sample in samples)
        if not has_types and not any(sample.images for sample in samples):
            return None
        images = [image for sample in samples for image in sample.images]
        return cls(
            counts=[len(sample.images) for sample in samples],
            grids=[image.grid for image in images],
            features=[image.features for image in images],
            ops=[image.ops for image in images],
            data=[
                _name_or_bytes(image, record)
                for sample, record in zip(samples, records, strict=True)
                for image in sample.images
            ],
            token_types=np.concatenate([_types_of(one) for one in samples]).astype(np.int8) if has_types else None,
            rope=np.concatenate([rope_of(one) for one in samples], axis=1) if has_types else None,
        )

    def unpack(self) -> Callable[[PreparedSample, slice, Record], PreparedSample]:
        """A function that completes the samples, called with each in turn: plain sample, its place, its record."""
        counts = iter(self.counts)
        images = iter(zip(self.data, self.ops, self.grids, self.features, strict=True))

        def complete(sample: PreparedSample, span: slice, record: Record) -> PreparedSample:
            own = []
            for data, ops, grid, features in (next(images) for _ in range(next(counts))):
                file = record.members[data] if isinstance(data, str) else data
                own.append(PreparedImage(np.frombuffer(file, np.uint8), ops, grid, features))
            sample = sample._replace(images=tuple(own), origin=(record.shard, record.key) if own else None)
            if self.token_types is None or self.rope is None:
                return sample
            types = self.token_types[span].astype(np.int32)
            return sample._replace(token_types=types, rope=self.rope[:, span])

        return complete


def portable(error: OdbStreamError) -> OdbStreamError:
    """The same error in a form that always pickles: a class of this package, the text, and the traceback as a note.

    A cause may not pickle, and a user's class may not unpickle, so neither is sent.
    """
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == OdbStreamError.__module__)
    copy: OdbStreamError = kind(str(error))
    copy.add_note("Traceback in the worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return copy


def _flat(rows: list[IntArray]) -> IntArray:
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)


def _default_labels(input_ids: IntArray, lengths: IntArray) -> IntArray:
    """The labels of samples that supervise every token: the ids, with the first of each sample ignored."""
    labels = input_ids.copy()
    labels[np.cumsum(lengths) - lengths] = IGNORED_LABEL
    return labels


def _name_or_bytes(image: PreparedImage, record: Record) -> str | bytes:
    """The member of the record that holds the image's file; else the bytes.

    The main process has the record's members already, so an unchanged file need not be sent back. Sharing memory
    proves that it is unchanged, without comparing megabytes.
    """
    for name, data in record.members.items():
        if len(data) == len(image.data) and np.shares_memory(np.frombuffer(data, np.uint8), image.data):
            return name
    return image.data.tobytes()


def _types_of(sample: PreparedSample) -> IntArray:
    return sample.token_types if sample.token_types is not None else np.zeros(sample.length, np.int32)
