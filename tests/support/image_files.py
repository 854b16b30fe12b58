"""Image files of many kinds, built with Pillow or by hand."""

import struct
import zlib

import numpy as np
from PIL import Image
from vision_support import encoded, picture

W, H = 23, 17


def exif(orientation: object) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def gray16(kind: str = "PNG") -> tuple[np.ndarray, bytes]:
    values = np.arange(W * H, dtype=np.uint32).reshape(H, W) * 65535 // (W * H - 1)
    return values, encoded(Image.fromarray(values.astype(np.uint16)), kind)


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG from its chunks, for what Pillow does not write."""
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def header(width: int, height: int, bits: int = 8, colour: int = 2) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)


RGB = picture(W, H)


OPAQUE = {
    "gray": encoded(RGB.convert("L")),
    "one bit": encoded(RGB.convert("1")),
    "palette": encoded(RGB.quantize(16)),
    "cmyk jpeg": encoded(RGB.convert("CMYK"), "JPEG"),
    "cmyk tiff": encoded(RGB.convert("CMYK"), "TIFF"),
    "ycbcr tiff": encoded(RGB.convert("YCbCr"), "TIFF"),
    "progressive jpeg": encoded(RGB, "JPEG", progressive=True),
    "gray jpeg": encoded(RGB.convert("L"), "JPEG"),
    "webp": encoded(RGB, "WEBP", quality=80),
    "bmp": encoded(RGB, "BMP"),
    "ppm": encoded(RGB, "PPM"),
    "gif": encoded(RGB.quantize(64), "GIF"),
    "jpeg 2000": encoded(RGB, "JPEG2000"),
    "avif": encoded(RGB, "AVIF"),
}


TRANSPARENT = {
    "rgba": encoded(picture(W, H, mode="RGBA")),
    "gray and alpha": encoded(picture(W, H, mode="LA")),
    "rgba webp": encoded(picture(W, H, mode="RGBA"), "WEBP", lossless=True, exact=True),
    "rgba tiff": encoded(picture(W, H, mode="RGBA"), "TIFF"),
    "palette, one colour transparent": encoded(RGB.quantize(16), transparency=3),
    "palette, many degrees": encoded(RGB.quantize(16), transparency=bytes(range(0, 256, 16))),
    "gray, one value transparent": encoded(RGB.convert("L"), transparency=RGB.convert("L").getpixel((3, 3))),
    "gif": encoded(RGB.quantize(16), "GIF", transparency=5),
}
