"""Inspections of pipelines with images: sizes from the files, patches and tokens from the stages, decoding timed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from inspection_data import FakeClock

import odb_stream as odb
from odb_stream.inspection import inspect, times
from odb_stream.inspection.collect import MOST_DECODED, collect, held_bytes
from odb_stream.inspection.times import DecodeTime, decode_time
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import Drop

sys.path.insert(0, str(Path(__file__).parents[2] / "pipelines"))

import vision_chat


@pytest.fixture(scope="module")
def recipe() -> odb.Pipeline:
    return vision_chat.build()


def test_the_images_of_the_vision_recipe(recipe):
    from odb_stream.stages.images.files import measure

    found = inspect(recipe, samples=40, window=8)
    prepare = prepare_for(recipe, 0)
    records = list(recipe.source.open().reading(odb.World(), seed=0, epoch=0).records())[:40]
    prepared = [prepare.record(record) for record in records]
    images = [image for sample in prepared for image in sample.images]
    sizes = [measure(image.data) for image in images]
    figures = found.images
    assert (figures.images, figures.samples_with_images) == (len(images), sum(bool(one.images) for one in prepared))
    assert (figures.width.max, figures.height.max) == (max(w for w, _ in sizes), max(h for _, h in sizes))
    assert figures.patches.mean == pytest.approx(sum(image.patches for image in images) / len(images))
    assert figures.tokens.mean * 4 == pytest.approx(figures.patches.mean)
    assert figures.file_bytes.max == max(image.data.nbytes for image in images)
    assert {part.name for part in found.histogram.by_modality} == {"text only", "with images"}
    assert found.decoding.images >= min(MOST_DECODED, len(images))
    assert found.times[-1].stage == "decode images (estimated)"
    assert found.held_bytes.max == max(map(held_bytes, prepared))
    sample = next(one for one in prepared if one.images)
    rows = sample.input_ids.nbytes * 6  # ids, labels, token types and three rows of rope
    assert held_bytes(sample) == rows + sum(image.data.nbytes for image in sample.images)


def test_decoding_is_timed_per_image_and_broken_samples_are_counted(recipe, monkeypatch):
    collected, prepare = collect(recipe, samples=20, seed=0, workers=0, report_progress=None)
    clock = FakeClock()
    monkeypatch.setattr(times, "time", clock.time)
    broken = collected.to_decode[1]

    def decode(source, images):
        clock.now += 0.5 * len(images)
        return Drop("image_broken") if images is broken.images else SimpleNamespace(pixels=list)

    monkeypatch.setattr(type(prepare), "decode", staticmethod(decode))
    count = sum(len(sample.images) for sample in collected.to_decode)
    assert decode_time(prepare, collected.to_decode) == DecodeTime(
        images=count, broken_samples=1, milliseconds_an_image=pytest.approx(500)
    )
    assert decode_time(prepare, []) is None
