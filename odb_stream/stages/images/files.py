"""Image files: how they are measured from the header and opened as upright RGB, and what is planned for each."""

import io
import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from odb_stream.sample import Drop, Op

ImageSize = tuple[int, int]
"""(width, height) in pixels."""

Grid = tuple[int, int, int]
"""Patches of an image in time, height and width."""

File: TypeAlias = bytes | memoryview | npt.NDArray[np.uint8]
"""A compressed image file."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "AVIF")
"""The formats that are read, by Pillow's names. The content decides which of them a file is, never its name."""

PIXEL_LIMIT = 89_478_485
"""The default limit on an image's pixels: beyond it, Pillow warns of decompression bombs."""

# All that Pillow's readers raise on damaged files. Not MemoryError: it depends on the machine, not on the file.
_READER_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError,
    EOFError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip

_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)  # the second where warnings are errors

# By EXIF orientation. Not ImageOps.exif_transpose: it decodes the pixels of a PNG to look for EXIF behind them.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Modes whose black and white are defined; "F" and "I" hold any range of values, so converting them would guess.
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I;16", "I;16B", "I;16L", "I;16N"}

# Reasons that mean broken data, not merely unwanted images: only these use up a failure budget.
_DAMAGED = {"image_empty", "image_unreadable", "image_broken", "image_missing", "image_surplus"}


class BadImage(Exception):
    """An image that cannot be used; a stage turns it into a Drop.

    ``reason`` is one of: "image_empty" (no bytes), "image_unreadable" (not one of ``FORMATS``, or a damaged header),
    "image_too_large" (more pixels than the limit), "image_mode" (floats or 32-bit integers, whose black and white are
    not defined), "image_aspect_ratio" (a model's own limit), "image_broken" (the pixels do not decode, or differ from
    the header), "image_missing" (a part without a file), "image_surplus" (a file without a part). ``detail`` describes
    it in words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def drop(self, where: str) -> Drop:
        """The drop of the sample at this place."""
        return Drop(self.reason, f"{where}: {self.detail}", damaged=self.reason in _DAMAGED)

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Applies(Protocol):
    """Whatever carries out an Op: an image transform."""

    def apply(self, image: Image.Image, parameters: tuple[float, ...]) -> Image.Image:
        """The transformed image."""


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """An image of a sample that was measured but not decoded, with the transforms that its pixels are to pass.

    Attributes:
        name: the member's extension ("0.jpg") or place in the item, for messages.
        data: the compressed file as read; after an early decode, a PNG.
        size: (width, height) after EXIF orientation and all ops so far.
        ops: what to apply, in order; these numbers are sent with the sample.
        transforms: the stages of these ops, in the same order; they are not sent to other processes.
        grid: the patches that the model sees, once ExpandVisualTokens has counted them.
        features: the tokens that the image takes, likewise.
    """

    name: str
    data: bytes = field(repr=False)
    size: ImageSize
    ops: tuple[Op, ...] = ()
    transforms: tuple[Applies, ...] = field(default=(), repr=False, compare=False)
    grid: Grid | None = None
    features: int = 0

    def planned(self, transform: Applies, op: Op, size: ImageSize) -> "PlannedImage":
        """The same image with one more op, after which it has this size."""
        return replace(self, ops=(*self.ops, op), transforms=(*self.transforms, transform), size=size)

    def decoded(self) -> Image.Image:
        """The pixels with all ops applied. Raises BadImage."""
        image = open_image(self.data)
        for transform, op in zip(self.transforms, self.ops, strict=True):
            image = transform.apply(image, op.parameters)
        return image


def measure(data: File, *, pixel_limit: int = PIXEL_LIMIT) -> ImageSize:
    """The size that :func:`open_image` gives, read from the header alone: no pixel is decoded.

    Raises BadImage for a file that cannot be opened and for more than ``pixel_limit`` pixels.
    """
    image = _header(data)
    width, height = image.size
    if width * height > pixel_limit:
        raise BadImage("image_too_large", f"{width} x {height} pixels, the limit is {pixel_limit}")
    if image.mode not in _MODES and not _is_wide_gray(image):
        raise BadImage("image_mode", f"{image.format} of mode {image.mode}: its black and white are not defined")
    return (height, width) if _orientation(image) >= 5 else (width, height)


def open_image(data: File) -> Image.Image:
    """The image as upright RGB: the first frame, its EXIF orientation applied, transparency on white.

    Gray, palette, CMYK and 1-bit images are converted as Pillow does; 16-bit values keep their high
    byte. Raises BadImage.
    """
    image = _header(data)
    size, turn = image.size, _TURNS.get(_orientation(image))
    try:
        image.load()
        upright = to_rgb(image)
    except _BOMBS as error:
        raise BadImage("image_too_large", str(error)) from error
    except _READER_ERRORS as error:
        raise BadImage("image_broken", f"{image.format} whose pixels do not decode ({_words(error)})") from error
    # Tokens were counted by the header: pixels of another size would not fit them.
    if upright.size != size:
        raise BadImage("image_broken", f"{image.format} of {size} by its header, {upright.size} by its pixels")
    return upright if turn is None else upright.transpose(turn)


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any accepted mode as RGB, transparency on white; see :func:`open_image`."""
    if image.mode.startswith("I"):  # Pillow's own conversion would clip these at 255
        high_bytes = (np.asarray(image) >> 8).astype(np.uint8)
        return Image.fromarray(high_bytes).convert("RGB")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        opaque = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def to_png(image: Image.Image) -> bytes:
    """An image in memory as a file of upright RGB, from which :func:`open_image` gives the same pixels.

    Raises BadImage if its pixels do not decode or its mode is not accepted.
    """
    if image.mode not in _MODES:
        raise BadImage("image_mode", f"an image of mode {image.mode}: its black and white are not defined")
    turn = _TURNS.get(_orientation(image))
    try:
        image.load()
        upright = to_rgb(image)
    except _READER_ERRORS as error:
        raise BadImage("image_broken", f"the pixels do not decode ({_words(error)})") from error
    # As a file it waits in the window like any other; level 1, because higher ones take many times as long.
    file = io.BytesIO()
    (upright if turn is None else upright.transpose(turn)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _header(data: File) -> ImageFile.ImageFile:
    """Open a file without decoding its pixels. Raises BadImage."""
    if len(data) == 0:
        raise BadImage("image_empty", "the file is empty")
    try:
        return Image.open(io.BytesIO(bytes(data)), formats=FORMATS)
    except _BOMBS as error:
        raise BadImage("image_too_large", str(error)) from error
    except UnidentifiedImageError:
        start, known = bytes(data[:8]), ", ".join(FORMATS)
        raise BadImage("image_unreadable", f"a file that starts with {start!r} is none of {known}") from None
    except _READER_ERRORS as error:
        raise BadImage("image_unreadable", f"the header does not parse ({_words(error)})") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8, as far as it is known before the pixels are decoded."""
    if image.format == "TIFF":  # Pillow turns these itself, size and pixels
        return 1
    if image.format == "PNG" and "exif" not in image.info:  # it may follow the pixels: getexif() would decode them
        return 1
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except _READER_ERRORS:  # EXIF that does not parse is ignored, as viewers do
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _is_wide_gray(image: Image.Image) -> bool:
    """Whether an image of 32-bit integers holds 16-bit values: these formats have no wider ones."""
    return image.mode == "I" and image.format in ("PNG", "PPM", "JPEG2000")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
