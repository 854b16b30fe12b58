"""Pictures as files, in the formats and forms that real data mix: JPEG, PNG and WebP, progressive, turned, palette."""

import io
from typing import Any

from demo_text.draw import Draw
from PIL import ExifTags, Image

FORMS = (
    ("jpeg", 36), ("progressive", 8), ("turned", 8), ("webp", 26), ("png", 10), ("palette", 10), ("transparent", 4),
)  # fmt: skip
SMOOTH = (("jpeg", 5), ("webp", 5))
"""For pictures with many colours, which PNG files would hold in many bytes."""


def encode(draw: Draw, picture: Image.Image, *, smooth: bool = False) -> tuple[str, bytes]:
    """The extension and the bytes of a picture as a file. Opened upright on white, every form shows the picture."""
    form = draw.weighted(SMOOTH if smooth else FORMS)
    if form == "webp":
        return "webp", _saved(picture, "WEBP", quality=draw.between(60, 90))
    if form == "palette":
        return "png", _saved(picture.quantize(16), "PNG", optimize=True)
    if form == "transparent":
        return "png", _saved(_white_as_hole(picture), "PNG", optimize=True)
    if form == "png":
        return "png", _saved(picture, "PNG", optimize=True)
    settings: dict[str, Any] = {"quality": draw.between(55, 90)}
    if form == "progressive":
        settings["progressive"] = True
    if form == "turned":  # as a camera held upright stores it: sideways, with a tag that says so
        tags = Image.Exif()
        tags[ExifTags.Base.Orientation] = 6
        settings["exif"] = tags
        picture = picture.transpose(Image.Transpose.ROTATE_90)
    return draw.pick(("jpg", "jpg", "jpeg")), _saved(picture, "JPEG", **settings)


def _saved(picture: Image.Image, kind: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


def _white_as_hole(picture: Image.Image) -> Image.Image:
    """White places made wholly transparent."""
    layers = [band.point(lambda value: 255 if value == 255 else 0) for band in picture.split()]
    white = Image.merge("RGB", layers).convert("L").point(lambda value: 0 if value == 255 else 255)
    picture = picture.convert("RGBA")
    picture.putalpha(white)
    return picture
