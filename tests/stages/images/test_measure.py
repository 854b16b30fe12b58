"""MeasureImages: which file belongs to which part of a chat, and what is measured."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image
from stage_samples import PLACE, sample
from vision_support import encoded, image_file, members, picture, turn

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop
from odb_stream.stages import MeasureImages

A, B, C = (image_file(10 + number, 20, seed=number) for number in range(3))
ANSWER = {"role": "assistant", "content": "a"}


def names(out) -> list[str]:
    return [image.name for image in out["images"]]


def dropped(*turns, reason: str, **fields) -> str:
    out = MeasureImages()(sample(messages=[*turns, ANSWER], **fields))
    assert isinstance(out, Drop), out
    assert out.reason == reason
    assert out.detail.startswith("train-3.tar, key '00042' (sample 7, byte offset 1536): ")
    return out.detail


def test_parts_take_the_images_in_order():
    chat = [turn("user", None, "and", None), ANSWER, turn("user", None)]
    out = MeasureImages()(sample(messages=chat, **members(A, B, C)))
    assert names(out) == ["0.png", "1.png", "2.png"]
    assert [image.size for image in out["images"]] == [(10, 20), (11, 20), (12, 20)]
    assert all(image.ops == () for image in out["images"])
    assert [image.data for image in out["images"]] == [A, B, C]
    assert out["images"][0].data is A
    assert not set(out) & {"0.png", "1.png", "2.png"}


NUMBERED = {f"{number}.png": A for number in (10, 9, 2, 1)} | {"left.b.png": B, "left.a.png": B}


@pytest.mark.parametrize(
    ("parts", "files", "taken"),
    [
        ([None] * 6, NUMBERED, ["1.png", "2.png", "9.png", "10.png", "left.a.png", "left.b.png"]),
        ([("1.png",), "x", None, ("1.png",), None], members(A, B, C), ["1.png", "0.png", "1.png", "2.png"]),
        ([("scan.bin",)], {"scan.bin": A, "notes.bin": b"x"}, ["scan.bin"]),
        ([("photo",)], {"photo": picture(9, 8), "label": 3}, ["photo"]),  # a column of a dataset
    ],
)
def test_which_images_the_parts_take(parts, files, taken):
    """Unnamed parts in the order of numbers; a named one its member, of any name, and the others are left."""
    out = MeasureImages()(sample(messages=[turn("user", *parts)], **files))
    assert names(out) == taken
    assert set(out) == {"messages", "images"} | set(files) - set(taken)


@pytest.mark.parametrize("name", ["0.jpg", "JPG", "0.a.JPeG", "x.webp"])
def test_the_content_decides_not_the_extension(name):
    out = MeasureImages()(sample(messages=[turn("user", None)], **{name: A}))
    assert out["images"][0].size == (10, 20)


def test_a_chat_without_images_passes():
    out = MeasureImages()(sample(messages=[turn("user", "a"), ANSWER], images=[], cls=b"3"))
    assert set(out) == {"messages", "cls"}
    assert set(MeasureImages()(sample(text="<|image_pad|>"))) == {"text"}


def test_a_missing_image():
    detail = dropped(turn("user", None, "x", None), reason="image_missing", **members(A))
    assert detail.endswith("part 2 of turn 0 (user) asks for an image, the images present: 0.png")
    detail = dropped(turn("user", ("7.png",)), reason="image_missing", **members(A, B))
    assert detail.endswith("part 0 of turn 0 (user) asks for the image '7.png', the images present: 0.png, 1.png")
    assert dropped(turn("user", None), reason="image_missing").endswith("the images present: none")
    assert "asks for the image 'json'" in dropped(turn("user", ("json",)), reason="image_missing")


def test_a_surplus_image():
    detail = dropped(turn("user", None), reason="image_surplus", **members(A, B, C))
    assert detail.endswith("no image part takes 1.png, 2.png; number of image parts: 1")
    assert dropped(turn("user", "<|image_pad|> <image>"), reason="image_surplus", **members(A))
    assert "takes 1.png;" in dropped(turn("user", ("0.png",)), reason="image_surplus", **members(A, B))
    out = MeasureImages()(sample(text="<image>", **members(A)))
    assert isinstance(out, Drop)
    assert out.reason == "image_surplus"


@pytest.mark.parametrize(("data", "reason"), [(b"", "image_empty"), (encoded(picture(2000, 600)), "image_too_large")])
def test_bad_images_are_drops_that_name_the_member(data, reason):
    out = MeasureImages(pixel_limit=1_000_000)(sample(messages=[turn("user", None, None)], **members(A, data)))
    assert isinstance(out, Drop)
    assert out.reason == reason
    assert ": image 1.png: " in out.detail


def test_a_chat_of_the_wrong_shape_names_stage_and_sample():
    with pytest.raises(StageError, match=f"MeasureImages, {PLACE}: .*content of turn 0 .* int 3"):
        MeasureImages()(sample(messages=[{"role": "user", "content": 3}, ANSWER]))


def test_the_images_of_a_dataset():
    """Files, Pillow images, and Hugging Face's undecoded images."""
    image = picture(9, 8)
    chat = [turn("user", None, None, None), ANSWER]
    out = MeasureImages()(sample(messages=chat, images=[A, image, {"bytes": B, "path": None}]))
    assert names(out) == ["images[0]", "images[1]", "images[2]"]
    assert names(MeasureImages()(sample(input_ids=[1, 2], images=[A, B]))) == ["images[0]", "images[1]"]
    assert [image.size for image in out["images"]] == [(10, 20), (9, 8), (11, 20)]
    assert np.array_equal(out["images"][1].decoded(), image)
    assert out["images"][1].data.startswith(b"\x89PNG")


def test_images_of_a_dataset_can_be_missing_surplus_and_broken():
    assert "takes images[1];" in dropped(turn("user", None), reason="image_surplus", images=[A, B])
    assert dropped(turn("user", None, None), reason="image_missing", images=[A]).endswith("present: images[0]")
    lazy = Image.open(io.BytesIO(encoded(picture(200, 150), "JPEG")[:-600]))
    assert "images[0]" in dropped(turn("user", None), reason="image_broken", images=[lazy])


@pytest.mark.parametrize(
    ("images", "words"),
    [(A, "'images' is bytes"), ([3], r"images\[0\] is int"), ([{"path": "a.png"}], r"images\[0\] is NoneType")],
)
def test_images_of_another_type(images, words):
    with pytest.raises(StageError, match=f"MeasureImages, {PLACE}: .*{words}"):
        MeasureImages()(sample(messages=[turn("user", None)], images=images))


def test_twice_is_once_too_often():
    with pytest.raises(StageError, match="already measured"):
        MeasureImages()(MeasureImages()(sample(messages=[turn("user", None)], **members(A))))


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_bad_settings(limit):
    assert pickle.loads(pickle.dumps(MeasureImages(pixel_limit=5))) == MeasureImages(pixel_limit=5)
    with pytest.raises(ConfigError, match="pixel_limit"):
        MeasureImages(pixel_limit=limit)
