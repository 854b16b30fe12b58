"""Files that are no usable image: each ends in one reason, and most before a pixel is decoded."""

import pickle
import random
import tracemalloc
import warnings
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import OPAQUE, RGB, TRANSPARENT, H, W, exif, gray16, header, png
from PIL import Image
from vision_support import encoded, picture

from odb_stream.stages import BadImage
from odb_stream.stages.images.files import PIXEL_LIMIT, measure, open_image, to_png


def reason(data: bytes, **settings: int) -> str:
    with pytest.raises(BadImage) as caught:
        measure(data, **settings)
    return caught.value.reason


def opening_reason(data: bytes) -> str:
    with pytest.raises(BadImage) as caught:
        open_image(data)
    return caught.value.reason


def test_no_bytes():
    assert reason(b"") == opening_reason(b"") == "image_empty"


@pytest.mark.parametrize(
    "data", [b"\0", b"not an image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0"]
)
def test_what_is_no_image(data):
    assert reason(data) == opening_reason(data) == "image_unreadable"


def test_the_detail_of_what_is_no_image_is_the_same_every_time():
    with pytest.raises(BadImage, match=r"starts with b'not an i' is none of JPEG, PNG") as caught:
        measure(b"not an image")
    assert "0x" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_truncated_jpeg_is_measured_and_then_broken():
    data = encoded(picture(200, 150), "JPEG")[:-600]
    assert measure(data) == (200, 150)
    assert opening_reason(data) == "image_broken"


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "JPEG2000", "AVIF", "BMP", "PPM"])
def test_other_truncated_files(kind):
    data = encoded(picture(200, 150), kind)
    assert opening_reason(data[: len(data) // 2]) in ("image_broken", "image_unreadable")


def test_a_hundred_megapixels_are_refused_from_the_header():
    size = 10_000
    data = png([header(size, size), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")])
    tracemalloc.start()
    try:
        assert reason(data) == "image_too_large"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [(10_000, 10_000), (30_000, 30_000), (65_000, 65_000)])
@pytest.mark.parametrize("manner", ["default", "error"])
def test_pillow_bombs_are_too_large_whatever_becomes_of_warnings(size, manner):
    data = png([header(*size), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")])
    with warnings.catch_warnings():
        warnings.simplefilter(manner)
        assert reason(data) == "image_too_large"


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


@pytest.mark.parametrize("junk", [b"Exif\0\0", b"Exif\0\0MM", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0junk" * 9])
def test_exif_that_does_not_parse_is_left(junk):
    data = encoded(RGB, "JPEG", exif=junk)
    assert measure(data) == open_image(data).size == (W, H)
