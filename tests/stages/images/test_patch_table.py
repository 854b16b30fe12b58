"""The table of patches: equal to the image processor bit for bit, and left aside where that is not known."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_support import picture, processor

from odb_stream.stages.families import QwenVision
from odb_stream.stages.images.patches import PatchTable

LIMITS = {"shortest_edge": 4_096, "longest_edge": 65_536}


def made(**settings) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(size=LIMITS, **settings)


def require_equal(images: Qwen2VLImageProcessorPil, image) -> None:
    family, made_of = QwenVision(images), images(images=[image], return_tensors="np")
    pixels, expected = family.raster(image).pixels(), made_of["pixel_values"]
    assert family.measure(*image.size)[0] == tuple(made_of["image_grid_thw"][0].tolist())
    assert pixels.dtype == expected.dtype == np.float32
    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, expected)
    assert np.array_equal(family.pixels(image), expected)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
@given(width=st.integers(1, 300), height=st.integers(1, 300), seed=st.integers(0, 9))
@example(width=200, height=1, seed=0)
@example(width=1, height=200, seed=0)
@settings(max_examples=60)
def test_every_size_gives_the_same(family, width, height, seed):
    if max(width, height) / min(width, height) <= 200:
        require_equal(processor(family).image_processor, picture(width, height, seed=seed))


SETTINGS = {
    "patches of 16": {"patch_size": 16},
    "merge 1": {"merge_size": 1},
    "merge 3": {"merge_size": 3, "patch_size": 8},
    "one frame": {"temporal_patch_size": 1},
    "own mean": {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.7, 1 / 3]},
    "not normalized": {"do_normalize": False},
    "not rescaled": {"do_rescale": False},
    "neither": {"do_rescale": False, "do_normalize": False},
    "own factor": {"rescale_factor": 1 / 127},
    "bilinear": {"resample": 2},
    "lanczos": {"resample": 1},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_gives_the_same(settings):
    for size in ((300, 200), (20, 90)):
        require_equal(made(**settings), picture(*size, seed=size[0]))


class Brighter(Qwen2VLImageProcessorPil):
    """A processor of the user's own."""

    def rescale(self, image, scale, **settings):
        return super().rescale(image, scale, **settings) * 2


class Nearest(Qwen2VLImageProcessorPil):
    """What a version that resizes by another rule would be."""

    def resize(self, image, size, resample, factor, **settings):
        return super().resize(image, size, 0, factor, **settings)


Nearest.__name__ = Qwen2VLImageProcessorPil.__name__


@pytest.mark.parametrize("kind", [Brighter, Nearest])
def test_a_processor_that_computes_something_else_is_asked_itself(kind):
    images = kind(size=LIMITS)
    assert PatchTable.of(images) is None
    family = QwenVision(images)
    image = picture(90, 60)
    assert family.raster(image) is None
    assert np.array_equal(family.pixels(image), images(images=[image], return_tensors="np")["pixel_values"])


def test_a_raster_travels_in_few_bytes():
    raster = QwenVision(made()).raster(picture(256, 256))
    packed = pickle.dumps(raster, 5)
    assert len(packed) < raster.array.nbytes + 8_000 < raster.pixels().nbytes / 6
    assert np.array_equal(pickle.loads(packed).pixels(), raster.pixels())
