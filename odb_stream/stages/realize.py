"""Decoding, last: the compressed images of one planned sample become the pixels that its tokens were counted for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odb_stream.errors import StageError
from odb_stream.sample import Drop, FloatArray, PreparedImage
from odb_stream.stages.images import BadImage, open_image
from odb_stream.stages.patches import Raster
from odb_stream.stages.visual import ExpandVisualTokens


@dataclass(frozen=True, slots=True)
class Pictures:
    """The decoded images of one sample: each a raster, from which its pixels follow, or the pixels themselves.

    What travels between processes: a raster has an eighth of the bytes of its pixels.
    """

    parts: tuple[Raster | FloatArray, ...]

    def pixels(self) -> FloatArray:
        """The pixels of all images, float32 of (patches, dimensions of a patch)."""
        arrays = [part.pixels() if isinstance(part, Raster) else part for part in self.parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


Decoded = Pictures | Drop
"""The decoded images of a sample, or why there are none."""


def decode_images(stages: Sequence[Any], images: Sequence[PreparedImage]) -> Decoded:
    """Open each image, apply the ops that the stages planned, and bring it into the form that the model's family takes.

    ``stages`` are those of the pipeline that prepared the sample, here or on another rank. A Drop tells of an image
    that does not decode.

    Raises:
        StageError: the pipeline has no ExpandVisualTokens.
    """
    expand = next((stage for stage in stages if isinstance(stage, ExpandVisualTokens)), None)
    if expand is None:
        raise StageError("a sample has images, but the pipeline no ExpandVisualTokens: add it as the last stage")
    parts: list[Raster | FloatArray] = []
    for number, image in enumerate(images):
        try:
            picture = open_image(image.data)
            for op in image.ops:
                picture = stages[op.place].apply(picture, op.parameters)
            parts.append(expand.rendered(picture, image.grid))
        except BadImage as error:
            return Drop(error.reason, f"image {number}: {error.detail}")
    return Pictures(tuple(parts))
