"""Wire format: groups as bytes, on their way from rank to rank. Plain arrays behind a header, never pickled.

Nothing that arrives from a peer is executed, and arrays are read in place, without a copy.
"""

import json
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from odb_stream.batching.cost import Footprint, Group
from odb_stream.nodes.pack import size_of
from odb_stream.sample import Bytes, Op, PreparedImage, PreparedSample, SampleRef

Number = TypeVar("Number", bound=np.generic)


def encode_groups(groups: list[Group[PreparedSample]]) -> Bytes:
    """Groups as one array of bytes, uint8 of shape (bytes,). Images stay compressed.

    The layout, in this order:

    - three int64: how many header integers, floats and int32 values follow
    - the header (int64): the number of groups; for each group its number of samples; for each sample reference, epoch,
      length, supervised tokens, whether it has token types and M-RoPE positions, bytes of shard and key, and number of
      images; for each image grid, features, bytes and number of ops; for each op its place and how many numbers it has
    - the drawn numbers of image ops (float64)
    - the rows of tokens (int32)
    - for each sample shard and key, as a JSON list, and its image files
    """
    header: list[int] = [len(groups)]
    floats: list[float] = []
    rows: list[npt.NDArray[np.int32]] = []
    files: list[Bytes] = []
    for group in groups:
        header.append(len(group.samples))
        for sample in group.samples:
            types, rope = sample.token_types, sample.rope
            header += [*sample.ref, sample.epoch, sample.length, sample.supervised, types is not None, rope is not None]
            origin = b"" if sample.origin is None else json.dumps(sample.origin).encode()
            header += [len(origin), len(sample.images)]
            files.append(np.frombuffer(origin, dtype=np.uint8))
            rows += [sample.input_ids, sample.labels]
            rows += [] if types is None else [types]
            rows += [] if rope is None else [rope.ravel()]
            for image in sample.images:
                header += [*image.grid, image.features, len(image.data), len(image.ops)]
                files.append(image.data)
                for op in image.ops:
                    header += [op.place, len(op.parameters)]
                    floats += op.parameters
    tokens = np.concatenate(rows).astype(np.int32, copy=False) if rows else np.empty(0, dtype=np.int32)
    sizes = np.array([len(header), len(floats), len(tokens)], dtype=np.int64)
    numbers = np.array(floats, dtype=np.float64)
    # The widest values come first, so that each part begins at a multiple of its item size and views are aligned.
    parts: list[npt.NDArray[Any]] = [sizes, np.array(header, dtype=np.int64), numbers, tokens]
    return np.concatenate([*(part.view(np.uint8) for part in parts), *files])


def decode_groups(data: Bytes, footprint: Footprint) -> list[Group[PreparedSample]]:
    """The groups that :func:`encode_groups` wrote; their arrays are views into ``data``."""
    sizes = data[:24].view(np.int64).tolist()
    bounds = np.cumsum([24, 8 * sizes[0], 8 * sizes[1], 4 * sizes[2]]).tolist()
    header = iter(data[bounds[0] : bounds[1]].view(np.int64).tolist())
    floats = iter(data[bounds[1] : bounds[2]].view(np.float64).tolist())
    tokens, files = _Cut(data[bounds[2] : bounds[3]].view(np.int32)), _Cut(data[bounds[3] :])
    groups = []
    for _ in range(next(header)):
        samples = tuple(_sample(header, floats, tokens, files) for _ in range(next(header)))
        groups.append(Group.of(samples, tuple(map(size_of, samples)), footprint))
    return groups


class _Cut(Generic[Number]):
    """Hands out an array from front to back, piece by piece."""

    def __init__(self, whole: npt.NDArray[Number]) -> None:
        self._whole = whole
        self._at = 0

    def take(self, length: int) -> npt.NDArray[Number]:
        """The next ``length`` values."""
        piece = self._whole[self._at : self._at + length]
        self._at += length
        return piece


def _sample(
    header: Iterator[int], floats: Iterator[float], tokens: _Cut[np.int32], files: _Cut[np.uint8]
) -> PreparedSample:
    ref = SampleRef(*(next(header) for _ in range(4)))
    epoch, length, supervised, has_types, has_rope, named, images = (next(header) for _ in range(7))
    origin = files.take(named).tobytes()
    return PreparedSample(
        ref,
        tokens.take(length),
        tokens.take(length),
        supervised,
        token_types=tokens.take(length) if has_types else None,
        rope=tokens.take(3 * length).reshape(3, length) if has_rope else None,
        images=tuple(_image(header, floats, files) for _ in range(images)),
        epoch=epoch,
        origin=tuple(json.loads(origin)) if origin else None,
    )


def _image(header: Iterator[int], floats: Iterator[float], files: _Cut[np.uint8]) -> PreparedImage:
    time, height, width, features, size, ops = (next(header) for _ in range(6))
    file = files.take(size)
    done = []
    for _ in range(ops):
        place, numbers = next(header), next(header)
        done.append(Op(place, tuple(next(floats) for _ in range(numbers))))
    return PreparedImage(file, tuple(done), (time, height, width), features)
