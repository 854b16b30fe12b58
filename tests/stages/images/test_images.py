"""Image files of the real world: how each is opened, and measuring agrees with opening."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from image_files import OPAQUE, RGB, TRANSPARENT, H, W, exif, gray16, header, png
from PIL import Image, ImageOps
from vision_support import encoded, picture

from odb_stream.sample import Op
from odb_stream.stages import BadImage, PlannedImage, RandomFlip, RandomResize
from odb_stream.stages.images.files import measure, open_image, to_png


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def on_white(image: Image.Image) -> np.ndarray:
    """Transparency over white, in exact arithmetic; Pillow may differ by one."""
    rgba = np.asarray(image.convert("RGBA"), dtype=float)
    alpha = rgba[..., 3:] / 255
    return rgba[..., :3] * alpha + 255 * (1 - alpha)


@pytest.mark.parametrize("data", OPAQUE.values(), ids=OPAQUE)
def test_opaque_images_are_converted_as_pillow_does(data):
    assert measure(data) == (W, H)
    assert np.array_equal(pixels(open_image(data)), pixels(Image.open(io.BytesIO(data)).convert("RGB")))
    assert open_image(data).mode == "RGB"


@pytest.mark.parametrize("data", TRANSPARENT.values(), ids=TRANSPARENT)
def test_transparency_lies_on_white(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_image(data)
    original = Image.open(io.BytesIO(data))
    assert measure(data) == opened.size == (W, H)
    assert np.abs(pixels(opened) - on_white(original)).max() <= 1
    assert not np.array_equal(pixels(opened), pixels(original.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_cut(kind):
    values, data = gray16(kind)
    opened = pixels(open_image(data))
    assert measure(data) == (W, H)
    assert np.array_equal(opened, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))
    assert (opened.min(), opened.max()) == (0, 255)


def test_sixteen_bit_colours_take_the_same_scale():
    row = b"\0" + np.array([0, 32768, 65535], ">u2").tobytes()
    data = png([header(1, 1, 16), (b"IDAT", zlib.compress(row)), (b"IEND", b"")])
    assert pixels(open_image(data)).tolist() == [[[0, 128, 255]]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_measured_and_applied(kind, orientation):
    data = encoded(RGB, kind, exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert measure(data) == expected.size == ((W, H) if orientation < 5 else (H, W))
    assert np.array_equal(pixels(open_image(data)), pixels(expected.convert("RGB")))


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


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_mean_nothing(orientation):
    data = encoded(RGB, "JPEG", exif=exif(orientation))
    assert measure(data) == open_image(data).size == (W, H)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind):
    frames = [Image.new("RGB", (W, H), colour) for colour in ("red", "lime", "blue")]
    settings = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **settings)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert measure(data) == (W, H)
    assert (pixels(open_image(data)) == [255, 0, 0]).all()


def test_a_pair_of_photographs_in_one_file():
    data = encoded(RGB, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert measure(data) == open_image(data).size == (W, H)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (1, 2000), (3000, 2)])
def test_thin_images_are_images(size):
    data = encoded(picture(*size))
    assert measure(data) == open_image(data).size == size


def test_a_frame_larger_than_its_screen():
    data = bytearray(encoded(RGB.quantize(16), "GIF"))
    data[6:10] = struct.pack("<HH", 5, 5)
    assert measure(bytes(data)) == open_image(bytes(data)).size == (W, H)


def test_any_buffer_is_a_file():
    data = encoded(RGB)
    for same in (memoryview(data), np.frombuffer(data, np.uint8)):
        assert measure(same) == (W, H)
        assert np.array_equal(pixels(open_image(same)), pixels(RGB))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "1"])
def test_images_in_memory_are_kept_without_loss(mode):
    image = picture(W, H).quantize(9) if mode == "P" else picture(W, H, mode="RGBA").convert(mode)
    kept = to_png(image)
    assert measure(kept) == (W, H)
    expected = on_white(image) if "A" in mode else pixels(image.convert("RGB"))
    assert np.abs(pixels(open_image(kept)) - expected).max() <= ("A" in mode)


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
    assert np.array_equal(pixels(image.decoded()), pixels(expected))
    assert image.ops == (Op(1, (10.0, 30.0)), Op(2, (1.0,)))
    assert image.size == (10, 30)
