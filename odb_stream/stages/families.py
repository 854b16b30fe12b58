"""How a family of vision models reads images: how many patches and tokens an image takes, and its pixels."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import Image

from odb_stream.config import require_int
from odb_stream.errors import ConfigError, StageError
from odb_stream.stages.images.files import BadImage, Grid, ImageSize
from odb_stream.stages.images.patches import PatchTable, Raster

Pixels = npt.NDArray[np.float32]
"""The vision encoder's input for one image: float32 of shape (patches, dimensions of a patch)."""

Measure = tuple[Grid, int]
"""The grid of an image (its product is the number of rows of its pixels), and the tokens that it takes."""


@runtime_checkable
class VisualFamily(Protocol):
    """The hook for a family of vision-language models: write a picklable class with these members, and give an instance
    to ``ExpandVisualTokens(processor, family=...)``.

    Attributes:
        image_token: the token that the chat template writes for an image; it is repeated for each feature.
        block: the tokens that the template writes just before and just after it, and that a cut must not separate from
            it; None if there are none.
        merge_size: for models with M-RoPE, the patches a side that become one token: samples then carry
            ``mm_token_type_ids`` and the three rows of positions. None for other models.
    """

    @property
    def image_token(self) -> str: ...

    @property
    def block(self) -> tuple[str, str] | None: ...

    @property
    def merge_size(self) -> int | None: ...

    def measure(self, width: int, height: int) -> Measure:
        """Grid and tokens of an image of this size. Raises BadImage for a size that the model does not accept."""

    def pixels(self, image: Image.Image) -> Pixels:
        """The pixels of an RGB image, with as many rows as the product of its grid."""


@dataclass(frozen=True)
class FixedTokens:
    """A family in which every image is resized to one size and takes the same number of tokens (CLIP-like encoders).

    Args:
        count: tokens of an image.
        size: (width, height) that the encoder takes.
        pixels_of: a picklable function from the resized RGB image to float32 of shape (rows, dimensions). The default
            gives one row with the channels one after another, scaled to 0 to 1, so that
            ``pixel_values.view(-1, 3, height, width)`` is the encoder's input.
        rows: rows of that array.
        image_token: as in :class:`VisualFamily`.
        block: as in :class:`VisualFamily`.
    """

    count: int
    size: ImageSize
    pixels_of: Callable[[Image.Image], Pixels] | None = field(default=None, kw_only=True)
    rows: int = field(default=1, kw_only=True)
    image_token: str = field(default="<image>", kw_only=True)
    block: tuple[str, str] | None = field(default=None, kw_only=True)
    merge_size: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_int("FixedTokens.count", self.count, minimum=1)
        require_int("FixedTokens.rows", self.rows, minimum=1)
        for side in self.size:
            require_int("FixedTokens.size", side, minimum=1)

    def measure(self, width: int, height: int) -> Measure:  # noqa: ARG002 - the same for every size
        """``rows`` patches and ``count`` tokens."""
        return (1, 1, self.rows), self.count

    def pixels(self, image: Image.Image) -> Pixels:
        """Resize and convert."""
        resized = image.resize(self.size, Image.Resampling.BICUBIC)
        if self.pixels_of is not None:
            return self.pixels_of(resized)
        return (np.asarray(resized, dtype=np.float32) / np.float32(255)).transpose(2, 0, 1).reshape(1, -1)


@dataclass(frozen=True, eq=False)
class QwenVision:
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL: both sides are resized to multiples of a merged patch.

    Args:
        image_processor: transformers' own (``Qwen2VLImageProcessor`` or its Pillow-backed twin). It is kept: a worker
            that receives this object imports transformers (seconds, and hundreds of megabytes).
        image_token, block: as in :class:`VisualFamily`.
    """

    image_processor: Any
    image_token: str = "<|image_pad|>"
    block: tuple[str, str] = ("<|vision_start|>", "<|vision_end|>")

    def __post_init__(self) -> None:
        kinds = {kind.__name__ for kind in type(self.image_processor).__mro__}
        if not kinds & {"Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil", "Qwen2VLImageProcessorFast"}:
            raise ConfigError(
                f"the image processor is {type(self.image_processor).__name__}, not that of Qwen2-VL, Qwen2.5-VL or "
                "Qwen3-VL: say how its images are measured with ExpandVisualTokens(processor, family=...)"
            )
        if not self.image_processor.do_resize:
            raise ConfigError("do_resize of the image processor is False, but these models need it: set it to True")

    @property
    def merge_size(self) -> int:
        """Patches a side that become one token."""
        return int(self.image_processor.merge_size)

    def measure(self, width: int, height: int) -> Measure:
        """Grid and tokens after the image processor's resizing, checked against its own count."""
        # The processor counts patches but does not say in how many rows; the rule for those is written again below.
        patch, merge = int(self.image_processor.patch_size), self.merge_size
        try:
            counted = self.image_processor.get_number_of_image_patches(height, width)
        except ValueError as error:
            raise BadImage("image_aspect_ratio", f"{width} x {height} pixels: {error}") from error
        sides = self._resized(width, height)
        rows, columns = sides[1] // patch, sides[0] // patch
        if rows * columns != counted:
            raise StageError(
                f"the image processor counts {counted} patches for {width} x {height} pixels, but its sides should be "
                f"{rows} and {columns} patches: this version of transformers resizes by another rule"
            )
        return (1, rows, columns), rows * columns // merge**2

    def pixels(self, image: Image.Image) -> Pixels:
        """The image processor's own result; by table if that is known to be the same."""
        raster = self.raster(image)
        if raster is not None:
            return raster.pixels()
        out = self.image_processor(images=[image], return_tensors="np")
        return np.asarray(out["pixel_values"], dtype=np.float32)

    def raster(self, image: Image.Image) -> Raster | None:
        """The resized image, which gives the pixels by table; None if there is no table for this processor."""
        return None if self._table is None else self._table.raster(image, self._resized(*image.size))

    @cached_property
    def _table(self) -> PatchTable | None:
        return PatchTable.of(self.image_processor)

    def _resized(self, width: int, height: int) -> ImageSize:
        """(width, height) after the image processor's resizing: multiples of a merged patch near the same ratio."""
        factor, limits = int(self.image_processor.patch_size) * self.merge_size, self.image_processor.size
        fewest, most = limits["shortest_edge"], limits["longest_edge"]  # pixels, in spite of the names
        sides = [round(side / factor) * factor for side in (width, height)]
        if sides[0] * sides[1] > most:
            shrink = math.sqrt((height * width) / most)
            sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height)]
        elif sides[0] * sides[1] < fewest:
            grow = math.sqrt(fewest / (height * width))
            sides = [math.ceil(side * grow / factor) * factor for side in (width, height)]
        return sides[0], sides[1]
