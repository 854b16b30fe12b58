"""MeasureImages: binds the image parts of a chat to image files and measures those; decoding comes last."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from odb_stream.config import require_int
from odb_stream.errors import StageError
from odb_stream.sample import Drop, Sample
from odb_stream.stages.chat.messages import BadChat, ImagePart, image_parts
from odb_stream.stages.images.files import PIXEL_LIMIT, BadImage, PlannedImage, measure, to_png
from odb_stream.storage.addresses import numeric_order

EXTENSIONS = frozenset([
    "jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "bmp", "dib", "ppm", "pgm", "pbm", "pnm", "webp", "tif", "tiff",
    "jp2", "j2k", "jpx", "avif",
])  # fmt: skip
"""Members of these extensions are the images of a key; a part may name any other member too."""


@dataclass(frozen=True)
class MeasureImages:
    """Find the image file of every image part and measure it from its header.

    No pixel is decoded here: that happens when a step is planned, just before the batch. Reads ``messages`` and the
    image members of the key, and replaces the members by ``images``, one
    :class:`~odb_stream.stages.images.files.PlannedImage` for each image part, in the order of the parts.

    A part ``{"type": "image", "image": "0.jpg"}`` takes the member of that extension, as often as it is named. A part
    without a name takes the key's next image that no part names, in natural order ("2.jpg" before "10.jpg"). Instead
    of members, the item of a dataset may hold ``images``: a list of files as bytes, of Pillow images (kept without
    loss, as PNG), or of Hugging Face's ``{"bytes": ...}``; parts without a name take them in order. An item without
    messages but with ``images`` keeps them all, in order. Placeholders in a text bind to nothing.

    Args:
        pixel_limit: the most pixels (width x height) that an image may have; the default is Pillow's own bound.

    Returns a Drop if an image cannot be used, with a reason of :class:`~odb_stream.stages.images.files.BadImage`.
    Raises StageError for
    messages of the wrong shape, for video parts, and for ``images`` of another type.
    """

    pixel_limit: int = field(default=PIXEL_LIMIT, kw_only=True)

    def __post_init__(self) -> None:
        require_int("pixel_limit", self.pixel_limit, minimum=1)

    def __call__(self, sample: Sample) -> Sample | Drop:
        """Bind and measure; see the class."""
        try:
            parts = image_parts(sample["messages"]) if "messages" in sample else None
        except BadChat as error:
            raise StageError(f"MeasureImages, {sample.where}: {error}") from error
        given = _given(sample)
        names = (name for name, value in sample.items() if _is_image_member(name, value))
        # Only the numeric part of the key: names that differ in leading zeros keep the order of the file.
        members = sorted(names, key=lambda name: numeric_order(name)[0])
        try:
            bound = _bind(sample, parts, given, members)
            images = [self._measured(name, value, sample) for name, value in bound]
        except BadImage as bad:
            return bad.drop(sample.where)
        taken = {name for name, _ in bound}
        kept = {name: value for name, value in sample.items() if name not in taken and name != "images"}
        return sample.with_fields({**kept, "images": images} if images else kept)

    def _measured(self, name: str, value: Any, sample: Sample) -> PlannedImage:
        if isinstance(value, Mapping):
            value = value.get("bytes")
        try:
            data = to_png(value) if isinstance(value, Image.Image) else value
            if not isinstance(data, bytes):
                raise StageError(
                    f"MeasureImages, {sample.where}: the image {name} is {type(data).__name__}: give the file as "
                    "bytes, or a Pillow image"
                )
            return PlannedImage(name, data, measure(data, pixel_limit=self.pixel_limit))
        except BadImage as bad:
            raise BadImage(bad.reason, f"image {name}: {bad.detail}") from bad


def _given(sample: Sample) -> list[tuple[str, Any]]:
    """The images that a dataset's item holds in its field ``images``, with names for messages."""
    images = sample.get("images")
    if images is None:
        return []
    if not isinstance(images, list | tuple) or any(isinstance(image, PlannedImage) for image in images):
        what = "already measured" if isinstance(images, list | tuple) else f"{type(images).__name__}, not a list"
        raise StageError(
            f"MeasureImages, {sample.where}: the field 'images' is {what}: give a list of files as bytes or of Pillow "
            "images, to one MeasureImages"
        )
    return [(f"images[{number}]", image) for number, image in enumerate(images)]


def _bind(
    sample: Sample, parts: list[ImagePart] | None, given: list[tuple[str, Any]], members: list[str]
) -> list[tuple[str, Any]]:
    """The name and file of each part, in order. Raises BadImage if a part or a file is left over."""
    if parts is None:
        parts = [ImagePart(f"image {number}", None) for number in range(len(given))]
    named = {part.name for part in parts}
    free = given + [(name, sample[name]) for name in members if name not in named]
    unnamed = iter(free)
    bound: list[tuple[str, Any]] = []
    for part in parts:
        if part.name is None:
            file = next(unnamed, None)
        else:
            value = sample.get(part.name)
            file = (part.name, value) if isinstance(value, bytes | Image.Image | Mapping) else None
        if file is None:
            wanted = "an image" if part.name is None else f"the image {part.name!r}"
            present = ", ".join([name for name, _ in given] + members) or "none"
            raise BadImage("image_missing", f"{part.place} asks for {wanted}, the images present: {present}")
        bound.append(file)
    # A file that no part takes is a mistake in the data more often than not, so the sample is not used without it.
    left = [name for name, _ in unnamed]
    if left:
        raise BadImage("image_surplus", f"no image part takes {', '.join(left)}; number of image parts: {len(parts)}")
    return bound


def _is_image_member(name: object, value: object) -> bool:
    return isinstance(value, bytes) and isinstance(name, str) and name.rpartition(".")[2].lower() in EXTENSIONS
