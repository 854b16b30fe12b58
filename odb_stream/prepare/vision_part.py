"""What the samples of a vision pipeline add to a chunk: images (by name where their record has them), positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odb_stream.sample import IntArray, Op, PreparedImage, PreparedSample, Record
from odb_stream.stages.rope import rope_of


@dataclass(frozen=True, slots=True)
class VisionPart:
    """Flat arrays over the samples of a chunk.

    ``counts`` has the number of images of each sample; ``grids`` (images, 3), ``features`` (images,), ``ops`` and
    ``data`` run over all images. An image's data are the name of a member of its record, which whoever holds the
    records has already, or bytes where a stage made others. ``token_types`` is int8 of shape (tokens,), ``rope`` int32
    of shape (3, tokens); None for a family of models without them.
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
        """The part of these samples, made of these records; None for a pipeline without vision."""
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
        """What completes the samples, called with each in turn: plain sample, place in the flat arrays, record."""
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


def _name_or_bytes(image: PreparedImage, record: Record) -> str | bytes:
    """The member of the record that holds exactly these bytes, in the same place of memory; else the bytes."""
    for name, data in record.members.items():
        if len(data) == len(image.data) and np.shares_memory(np.frombuffer(data, np.uint8), image.data):
            return name
    return image.data.tobytes()


def _types_of(sample: PreparedSample) -> IntArray:
    return sample.token_types if sample.token_types is not None else np.zeros(sample.length, np.int32)
