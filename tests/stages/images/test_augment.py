"""Image transforms: planning equals applying, and the draws belong to (seed, epoch, sample, place, image) alone."""

import pickle
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from stage_samples import PLACE, sample, through
from vision_support import encoded, image_file, picture

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop, Op
from odb_stream.stages import (
    ColorJitter,
    ImageTransform,
    MeasureImages,
    PixelTransform,
    PlannedImage,
    RandomCrop,
    RandomFlip,
    RandomResize,
)

TRANSFORMS = [
    RandomResize(scale=(0.05, 1.3)),
    RandomResize(scale=(0.5, 0.5)),
    RandomCrop(scale=(0.01, 1.0)),
    RandomCrop(scale=(0.3, 1.0), ratio=(0.2, 5.0)),
    RandomCrop(scale=(1.0, 1.0), ratio=(3.0, 3.0)),
    RandomFlip(),
    ColorJitter(brightness=0.4, contrast=(0.5, 1.5), saturation=1.0),
]


PHOTOGRAPH = PlannedImage("0.png", image_file(60, 40), (60, 40))


def planned(*images: PlannedImage, **place: int):
    return sample(images=list(images), **place)


@given(
    size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    chain=st.lists(st.sampled_from(TRANSFORMS), min_size=1, max_size=4),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=120)
def test_planning_equals_applying(size, chain, seed):
    """Over all sizes, transforms and chains: the image has exactly the planned size after each of them."""
    plain = PlannedImage("0.png", b"", size)
    out = through(chain, planned(plain, seed=seed))["images"][0]
    image = Image.new("RGB", size)
    for transform, op in zip(chain, out.ops, strict=True):
        assert all(type(number) is float for number in op.parameters)
        image = transform.apply(image, op.parameters)
    assert image.size == out.size
    assert image.mode == "RGB"
    assert min(out.size) >= 1
    assert [op.place for op in out.ops] == list(range(len(chain)))


def draws_of(transform, **place) -> Op:
    return transform(planned(PHOTOGRAPH, **place))["images"][0].ops[0]


@pytest.mark.parametrize(
    "transform", [RandomResize(scale=(0.1, 1.0)), RandomCrop(scale=(0.1, 0.9)), ColorJitter(contrast=1)]
)
def test_the_draws_belong_to_seed_epoch_sample_and_place(transform):
    place = {"seed": 1, "epoch": 2, "index": 3, "stage": 4}
    here = draws_of(transform, **place)
    assert draws_of(transform, **place) == here
    others = [draws_of(transform, **{**place, name: 5}) for name in place]
    assert len({op.parameters for op in [here, *others]}) == 5


def test_the_images_of_a_sample_draw_apart():
    out = RandomResize(scale=(0.1, 1.0))(planned(PHOTOGRAPH, PHOTOGRAPH, PHOTOGRAPH))
    assert len({image.ops for image in out["images"]}) == 3


def test_the_sample_given_is_left_as_it_is():
    given_sample = planned(PHOTOGRAPH)
    RandomFlip()(given_sample)
    assert given_sample["images"] == [PHOTOGRAPH]


def test_flips_come_as_often_as_told():
    def share(probability):
        flips = [draws_of(RandomFlip(probability), index=index).parameters[0] for index in range(400)]
        return sum(flips) / 400

    assert (share(0), share(1)) == (0, 1)
    assert 0.4 < share(0.5) < 0.6
    assert 0.2 < share(0.3) < 0.4


def test_what_each_transform_does_to_pixels():
    image = picture(30, 20)
    resized = RandomResize(scale=(0.5, 0.5)).apply(image, (15.0, 10.0))
    assert np.array_equal(resized, image.resize((15, 10), Image.Resampling.BICUBIC))
    cropped = RandomCrop(scale=(0.1, 1)).apply(image, (3.0, 4.0, 10.0, 5.0))
    assert np.array_equal(cropped, np.asarray(image)[4:9, 3:13])
    assert np.array_equal(RandomFlip().apply(image, (1.0,)), np.asarray(image)[:, ::-1])
    assert np.array_equal(RandomFlip().apply(image, (0.0,)), image)
    jittered = ColorJitter().apply(image, (0.5, 1.0, 2.0))
    assert np.array_equal(jittered, ImageEnhance.Color(ImageEnhance.Brightness(image).enhance(0.5)).enhance(2.0))
    assert ColorJitter().apply(image, (1.0, 1.0, 1.0)) is image


def test_crops_reach_every_corner_and_keep_their_share():
    crop = RandomCrop(scale=(0.25, 0.25))
    ops = [draws_of(crop, index=index).parameters for index in range(500)]
    assert {parameters[2:] for parameters in ops} == {(30.0, 20.0)}
    assert {parameters[0] for parameters in ops} == set(map(float, range(31)))
    assert {parameters[1] for parameters in ops} == set(map(float, range(21)))


@dataclass(frozen=True)
class Trim(PixelTransform):
    """Cuts the black border off: no one knows the size before seeing the pixels."""

    def transform(self, image, draws):
        return image.crop(image.getbbox())


class Speckle(PixelTransform):
    def transform(self, image, draws):
        return Image.fromarray(np.asarray(image) ^ draws.integers(0, 8, (image.height, image.width, 3), dtype=np.uint8))


def bordered() -> Image.Image:
    image = Image.new("RGB", (40, 30))
    image.paste(Image.new("RGB", (10, 8), "orange"), (5, 6))
    return image


def test_a_transform_that_must_see_the_pixels_decodes_early():
    start = sample(messages=[{"role": "user", "content": [{"type": "image"}]}], **{"0.png": encoded(bordered())})
    out = through([MeasureImages(), RandomFlip(1.0), Trim(), RandomResize(scale=(2, 2))], start)["images"][0]
    assert out.size == (20, 16)
    assert out.ops == (Op(3, (20.0, 16.0)),)
    assert out.decoded().size == (20, 16)
    assert (np.asarray(out.decoded()) == [255, 165, 0]).all()


def test_an_early_decode_loses_nothing():
    out, again = (through([RandomFlip(1.0), Speckle()], planned(PHOTOGRAPH, seed=3))["images"][0] for _ in range(2))
    difference = np.asarray(out.decoded()) ^ np.asarray(picture(60, 40))[:, ::-1]
    assert (out.data[:4], out.ops) == (b"\x89PNG", ())
    assert 0 < difference.max() < 8
    assert np.array_equal(out.decoded(), again.decoded())


def test_a_broken_image_is_dropped_by_an_early_decode():
    broken = PlannedImage("0.jpg", encoded(picture(200, 150), "JPEG")[:-600], (200, 150))
    dropped = Trim()(planned(PHOTOGRAPH, broken))
    assert isinstance(dropped, Drop)
    assert dropped.reason == "image_broken"
    assert "train-3.tar, key '00042'" in dropped.detail
    assert "image 0.jpg" in dropped.detail


@pytest.mark.parametrize("stage", [RandomFlip(), Trim()])
def test_the_order_of_stages(stage):
    text = sample(text="a")
    assert stage(text) is text
    name = type(stage).__name__
    with pytest.raises(StageError, match=f"{name}, {PLACE}: .*MeasureImages"):
        stage(sample(images=[image_file()]))
    counted = PlannedImage("0.png", b"", (1, 1), grid=(1, 2, 2), features=1)
    with pytest.raises(StageError, match=f"{name}, {PLACE}: .*ExpandVisualTokens"):
        stage(planned(counted))


class Halve(ImageTransform):
    """A user's own, with integers where floats are asked for."""

    def plan(self, size, draws):
        size = (max(1, size[0] // 2), max(1, size[1] // 2))
        return size, size

    def apply(self, image, parameters):
        return image.resize((int(parameters[0]), int(parameters[1])))


def test_a_transform_of_the_users_own():
    out = through([Halve(), Halve()], planned(PHOTOGRAPH))["images"][0]
    assert out.ops == (Op(0, (30.0, 20.0)), Op(1, (15.0, 10.0)))
    assert out.decoded().size == out.size == (15, 10)


@pytest.mark.parametrize(
    ("kind", "name", "value", "limits"),
    [
        (RandomResize, "scale", (0.9, 0.8), "above 0"),
        (RandomResize, "scale", (0, 1), "above 0"),
        (RandomResize, "scale", 0.5, "pair"),
        (RandomResize, "scale", (0.5, float("nan")), "pair"),
        (RandomResize, "scale", (0.5, "1"), "pair"),
        (RandomCrop, "scale", (0.5, 1.5), "up to 1"),
        (RandomCrop, "ratio", (0, 1), "above 0"),
        (RandomFlip, "probability", 1.5, "from 0 to 1"),
        (RandomFlip, "probability", True, "from 0 to 1"),
        (ColorJitter, "brightness", -0.1, "at least 0"),
        (ColorJitter, "contrast", (2, 1), "from 0"),
        (ColorJitter, "saturation", float("inf"), "from 0"),
    ],
)
def test_bad_settings(kind, name, value, limits):
    with pytest.raises(ConfigError, match=re.escape(f"{kind.__name__}.{name} is {value!r}") + f".*{limits}"):
        kind(**(({"scale": (0.5, 1)} if name == "ratio" else {}) | {name: value}))


@pytest.mark.parametrize("transform", [*TRANSFORMS, ColorJitter(brightness=[0.0, 2.0])])
def test_transforms_travel_to_workers(transform):
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform
    assert draws_of(copy) == draws_of(transform)
