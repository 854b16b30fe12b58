"""Image files of the real world: how each is measured and opened, and the one reason of each that cannot be used."""

import io
import pickle
import random
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from vision_support import encoded, exif, picture

from odb_stream.sample import Op
from odb_stream.stages import BadImage, PlannedImage, RandomFlip, RandomResize
from odb_stream.stages.images.files import PIXEL_LIMIT, measure, open_image, to_png

W, H = 23, 17


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


def on_white(image: Image.Image) -> np.ndarray:
    """Transparency over white, in exact arithmetic; Pillow may differ by one."""
    rgba = np.asarray(image.convert("RGBA"), dtype=float)
    alpha = rgba[..., 3:] / 255
    return rgba[..., :3] * alpha + 255 * (1 - alpha)


@pytest.mark.parametrize("data", OPAQUE.values(), ids=OPAQUE)
def test_opaque_images_are_converted_as_pillow_does(data):
    assert measure(data) == (W, H)
    assert np.array_equal(np.asarray(open_image(data)), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert open_image(data).mode == "RGB"


@pytest.mark.parametrize("data", TRANSPARENT.values(), ids=TRANSPARENT)
def test_transparency_lies_on_white(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_image(data)
    original = Image.open(io.BytesIO(data))
    assert measure(data) == opened.size == (W, H)
    assert np.abs(np.asarray(opened) - on_white(original)).max() <= 1
    assert not np.array_equal(np.asarray(opened), np.asarray(original.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_cut(kind):
    values, data = gray16(kind)
    opened = np.asarray(open_image(data))
    assert measure(data) == (W, H)
    assert np.array_equal(opened, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))
    assert (opened.min(), opened.max()) == (0, 255)
    # Pillow does not write 16-bit colours.
    row = b"\0" + np.array([0, 32768, 65535], ">u2").tobytes()
    data = png([header(1, 1, 16), (b"IDAT", zlib.compress(row)), (b"IEND", b"")])
    assert np.asarray(open_image(data)).tolist() == [[[0, 128, 255]]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_measured_and_applied(kind, orientation):
    data = encoded(RGB, kind, exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert measure(data) == expected.size == ((W, H) if orientation < 5 else (H, W))
    assert np.array_equal(np.asarray(open_image(data)), np.asarray(expected.convert("RGB")))


def test_the_exif_of_a_png_counts_only_before_the_pixels():
    """Behind them it could be read only by decoding, so both ways leave it."""
    turned = encoded(RGB, exif=exif(6))
    start = turned.index(b"eXIf") - 4
    end = start + 12 + struct.unpack(">I", turned[start : start + 4])[0]
    iend = turned.index(b"IEND") - 4
    behind = turned[:start] + turned[end:iend] + turned[start:end] + turned[iend:]
    assert ImageOps.exif_transpose(Image.open(io.BytesIO(behind))).size == (H, W)
    assert (measure(turned), measure(behind)) == ((H, W), (W, H))
    assert (open_image(turned).size, open_image(behind).size) == ((H, W), (W, H))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind):
    frames = [Image.new("RGB", (W, H), colour) for colour in ("red", "lime", "blue")]
    settings = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **settings)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert measure(data) == (W, H)
    assert (np.asarray(open_image(data)) == [255, 0, 0]).all()


def beyond_its_screen() -> bytes:
    """A GIF whose frame is larger than its screen."""
    data = bytearray(encoded(RGB.quantize(16), "GIF"))
    data[6:10] = struct.pack("<HH", 5, 5)
    return bytes(data)


PAIR = encoded(RGB, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
JUNK = [b"Exif\0\0", b"Exif\0\0MM", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0junk" * 9]
ODD = {
    "a pair of photographs": (PAIR, (W, H)),
    "a frame larger than its screen": (beyond_its_screen(), (W, H)),
    **{f"{size}": (encoded(picture(*size)), size) for size in [(1, 1), (1, 40), (40, 1), (1, 2000), (3000, 2)]},
    **{f"orientation {tag}": (encoded(RGB, "JPEG", exif=exif(tag)), (W, H)) for tag in (0, 9, 65535)},
    **{f"EXIF {junk[6:8]!r}": (encoded(RGB, "JPEG", exif=junk), (W, H)) for junk in JUNK},
}


@pytest.mark.parametrize(("data", "size"), ODD.values(), ids=ODD)
def test_odd_files_are_opened_as_measured(data, size):
    assert measure(data) == open_image(data).size == size


def test_any_buffer_is_a_file():
    data = encoded(RGB)
    for same in (memoryview(data), np.frombuffer(data, np.uint8)):
        assert measure(same) == (W, H)
        assert np.array_equal(np.asarray(open_image(same)), np.asarray(RGB))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "1"])
def test_images_in_memory_are_kept_without_loss(mode):
    image = picture(W, H).quantize(9) if mode == "P" else picture(W, H, mode="RGBA").convert(mode)
    kept = to_png(image)
    assert measure(kept) == (W, H)
    expected = on_white(image) if "A" in mode else np.asarray(image.convert("RGB"))
    assert np.abs(np.asarray(open_image(kept)) - expected).max() <= ("A" in mode)


def test_an_opened_photograph_in_memory_is_kept_upright():
    image = Image.open(io.BytesIO(encoded(RGB, "JPEG", exif=exif(6))))
    assert measure(to_png(image)) == (H, W)
    broken = Image.open(io.BytesIO(encoded(picture(200, 150), "JPEG")[:-600]))
    with pytest.raises(BadImage, match="image_broken"):
        to_png(broken)


def test_a_planned_image_is_decoded_through_its_ops_in_order():
    image = PlannedImage("0.png", encoded(RGB), RGB.size)
    image = image.planned(RandomResize(scale=(1, 2)), Op(1, (10.0, 30.0)), (10, 30))
    image = image.planned(RandomFlip(), Op(2, (1.0,)), (10, 30))
    expected = RGB.resize((10, 30), Image.Resampling.BICUBIC).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert np.array_equal(np.asarray(image.decoded()), np.asarray(expected))
    assert image.ops == (Op(1, (10.0, 30.0)), Op(2, (1.0,)))
    assert image.size == (10, 30)


def reason(data: bytes, read=measure, **settings: int) -> str:
    with pytest.raises(BadImage) as caught:
        read(data, **settings)
    return caught.value.reason


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"not an image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0"]
)
def test_what_is_no_image(data):
    assert reason(data) == reason(data, open_image) == ("image_unreadable" if data else "image_empty")


def test_the_detail_of_what_is_no_image_is_the_same_every_time():
    with pytest.raises(BadImage, match=r"starts with b'not an i' is none of JPEG, PNG") as caught:
        measure(b"not an image")
    assert "0x" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "JPEG2000", "AVIF", "BMP", "PPM"])
def test_truncated_files(kind):
    jpeg = encoded(picture(200, 150), "JPEG")[:-600]
    assert (measure(jpeg), reason(jpeg, open_image)) == ((200, 150), "image_broken")
    data = encoded(picture(200, 150), kind)
    assert reason(data[: len(data) // 2], open_image) in ("image_broken", "image_unreadable")


@pytest.mark.parametrize("size", [(10_000, 10_000), (30_000, 30_000), (65_000, 65_000)])
@pytest.mark.parametrize("manner", ["default", "error"])
def test_too_large_images_are_refused_from_the_header_whatever_becomes_of_warnings(size, manner):
    data = png([header(*size), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")])
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(manner)
            assert reason(data) == "image_too_large"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_pixel_limit_is_inclusive():
    data = encoded(RGB)
    assert measure(data, pixel_limit=W * H) == (W, H)
    assert reason(data, pixel_limit=W * H - 1) == "image_too_large"
    assert Image.MAX_IMAGE_PIXELS == PIXEL_LIMIT


SOURCES = [*OPAQUE.values(), *TRANSPARENT.values(), encoded(RGB, "JPEG", exif=exif(6)), gray16("TIFF")[1]]


@given(st.integers(0, len(SOURCES) - 1), st.integers(0, 2**32), st.integers(1, 12))
@settings(max_examples=800)
def test_damage_ends_in_a_reason_or_in_the_measured_size(number, seed, hits):
    draws = random.Random(seed)
    data = bytearray(SOURCES[number])
    for _ in range(hits):
        data[draws.randrange(min(len(data), 400))] = draws.randrange(256)
    if draws.random() < 0.3:
        del data[draws.randrange(len(data)) :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            size = measure(bytes(data), pixel_limit=1_000_000)
            opened = open_image(bytes(data))
        except BadImage:
            return
    assert opened.size == size


@pytest.mark.parametrize("image", [Image.new("F", (4, 4)), Image.new("I", (4, 4))], ids=["floats", "32-bit integers"])
def test_values_without_a_defined_white_are_refused(image):
    assert reason(encoded(image, "TIFF")) == "image_mode"
    with pytest.raises(BadImage, match="image_mode"):
        to_png(image)
