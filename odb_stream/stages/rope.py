"""The three rows of M-RoPE positions of one sample: time, height and width."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odb_stream.sample import IntArray, PreparedSample
from odb_stream.stages.images.files import Grid


def rope_positions(token_types: npt.NDArray[np.integer], grids: Sequence[Grid], merge_size: int) -> IntArray:
    """Positions as Qwen2-VL, Qwen2.5-VL and Qwen3-VL count them, int32 of shape (3, length).

    Each text token adds one to all three rows. The tokens of an image have the time, height and width of their merged
    patch, counted from the position where the image begins; the text after it continues after the longer side.

    Args:
        token_types: shape (length,), 1 on image tokens.
        grids: patches in time, height and width of each image, in order.
        merge_size: patches a side that become one token.

    Example: two text tokens, an image of 1 x 4 x 6 patches with ``merge_size`` 2, one text token:
    time ``0 1 2 2 2 2 2 2 5``, height ``0 1 2 2 2 3 3 3 5``, width ``0 1 2 3 4 2 3 4 5``.

    Raises ValueError unless the image tokens are exactly those of the grids, with those of each image in one run.
    """
    places = np.flatnonzero(token_types)
    positions = np.empty((3, len(token_types)), dtype=np.int32)
    done = following = seen = 0  # tokens placed, the next position, image tokens placed
    for time, height, width in grids:
        rows, columns = height // merge_size, width // merge_size
        count = time * rows * columns
        own = places[seen : seen + count]
        if len(own) < count or (count and own[-1] - own[0] != count - 1):
            raise ValueError(f"the image of {time} x {height} x {width} patches needs {count} image tokens in one run")
        begin = int(own[0]) if count else done
        positions[:, done:begin] = np.arange(following, following + begin - done)
        following += begin - done
        done, seen = begin + count, seen + count
        positions[:, begin:done] = np.indices((time, rows, columns)).reshape(3, -1) + following
        following += max(rows, columns)
    if seen < len(places):
        raise ValueError(f"{len(places)} image tokens, but the grids of the images give {seen}")
    positions[:, done:] = np.arange(following, following + len(token_types) - done)
    return positions


def rope_of(sample: PreparedSample) -> IntArray:
    """The three rows of a prepared sample, (3, length); without rows of its own, those of plain text."""
    if sample.rope is not None:
        return sample.rope
    return np.tile(np.arange(sample.length, dtype=np.int32), (3, 1))
