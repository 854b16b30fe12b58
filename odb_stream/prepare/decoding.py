"""Decoding, the last step: compressed images become the pixels that the tokens of their sample were counted for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from odb_stream.errors import StageError
from odb_stream.sample import Drop, FloatArray, HeldPixels, PreparedImage, Stage
from odb_stream.stages.images.files import Applies, BadImage, open_image
from odb_stream.stages.images.patches import Raster
from odb_stream.stages.visual import expander


@dataclass(frozen=True, slots=True)
class DecodedImages:
    """The decoded images of one sample: each a raster, from which its pixels follow, or the pixels themselves.

    A raster has an eighth of the bytes of its pixels, so it is what is sent between processes and kept for the batch.
    """

    parts: tuple[Raster | FloatArray, ...]

    def pixels(self) -> FloatArray:
        """The pixels of all images, float32 of (patches, dimensions of a patch)."""
        return stacked([self])


Decoded = DecodedImages | Drop
"""The decoded images of a sample, or why it has none."""


def stacked(held: Sequence[FloatArray | HeldPixels]) -> FloatArray:
    """The pixels of several samples in one new array, float32 of (patches, dimensions of a patch)."""
    parts: list[Raster | FloatArray] = []
    for one in held:
        parts += one.parts if isinstance(one, DecodedImages) else [one if isinstance(one, np.ndarray) else one.pixels()]
    shapes = [part.shape for part in parts]
    out = np.empty((sum(rows for rows, _ in shapes), shapes[0][1]), dtype=np.float32)
    end = 0
    for part, (rows, _) in zip(parts, shapes, strict=True):
        start, end = end, end + rows
        if isinstance(part, Raster):
            part.write(out[start:end])
        else:
            out[start:end] = part
    return out


def decode_images(stages: Sequence[Stage], images: Sequence[PreparedImage]) -> Decoded:
    """Open each image, apply the ops that the stages planned, and bring it into the form that the model's family takes.

    ``stages`` are those of the pipeline that prepared the sample, here or on another rank: an op names its transform by
    the place in the pipeline, which is the same on all ranks. Returns a Drop if an image does not decode.

    Raises:
        StageError: the pipeline has no ExpandVisualTokens.
    """
    expand = expander(stages)
    if expand is None:
        raise StageError("a sample has images, but the pipeline no ExpandVisualTokens: add it as the last stage")
    parts: list[Raster | FloatArray] = []
    for number, image in enumerate(images):
        try:
            picture = open_image(image.data)
            for op in image.ops:
                # Only transforms plan ops, so the stage at an op's place is one.
                picture = cast(Applies, stages[op.place]).apply(picture, op.parameters)
            parts.append(expand.rendered(picture, image.grid))
        except BadImage as error:
            return error.drop(f"image {number}")
    return DecodedImages(tuple(parts))
