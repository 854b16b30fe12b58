"""Real photographs, those that come with scikit-image, through the pipeline: equal to the processor, none lost."""

import io
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image
from vision_support import on_white, pipeline, processed, processor, turn

import odb_stream as odb
from odb_stream import stages
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import START

SHIPPED = [
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
    "color.png", "grass.png", "gravel.png", "horse.png", "hubble_deep_field.jpg", "ihc.png", "logo.png", "moon.png",
    "motorcycle_left.png", "motorcycle_right.png", "no_time_for_that_tiny.gif", "page.png", "retina.jpg", "rocket.jpg",
    "text.png",
]  # fmt: skip
"""The pictures that are inside the package; others it would download."""


@cache
def files() -> dict[str, bytes]:
    """Each as it is shipped and, except the animation, once more as a JPEG."""
    folder = Path(skimage.data.__file__).parent
    found = {name: (folder / name).read_bytes() for name in SHIPPED}
    for number, name in enumerate(SHIPPED):
        if not name.endswith(".gif"):
            image = Image.open(io.BytesIO(found[name]))
            file = io.BytesIO()
            plain = image if image.mode in ("L", "RGB") else on_white(found[name])
            plain.save(file, "JPEG", quality=88, progressive=number % 2 == 0)
            found[f"{name} as JPEG"] = file.getvalue()
    return found


class Album:
    """One chat for each photograph; every third shows the next one as well."""

    def __len__(self) -> int:
        return len(files())

    def __getitem__(self, index: int) -> dict:
        every = list(files().values())
        images = [every[index], every[(index + 1) % len(every)]] if index % 3 == 0 else [every[index]]
        return {
            "messages": [turn("user", *[None] * len(images), "what is it?"), turn("assistant", f"photograph {index}")],
            "images": images,
        }


def expected(index: int) -> dict:
    item = Album()[index]
    return processed(processor("qwen3_vl"), item["messages"], item["images"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_every_photograph_arrives_as_the_processor_gives_it(workers):
    seen = set()
    with odb.Loader(
        pipeline(Album()), budget=odb.Budget(tokens=600), layout="packed", window=16, workers=workers
    ) as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            rows = images = 0
            for place, ref in enumerate(step.refs):
                given = expected(ref.index)
                start, stop = batch["cu_seq_lens_q"][place : place + 2].tolist()
                assert batch["input_ids"][0, start:stop].tolist() == given["input_ids"][0].tolist(), ref
                count, grids = len(given["pixel_values"]), given["image_grid_thw"]
                assert np.array_equal(batch["pixel_values"][rows : rows + count], given["pixel_values"]), ref
                assert np.array_equal(batch["image_grid_thw"][images : images + len(grids)], grids), ref
                rows, images = rows + count, images + len(grids)
                seen.add(ref.index)
            assert rows == len(batch["pixel_values"])
        report = loader.report()
    assert seen == set(range(len(files()))) == set(range(43))
    assert (report["emitted"], report["dropped"]) == (43, {})


def test_augmented_photographs_have_a_token_a_feature():
    more = (
        stages.RandomCrop(scale=(0.3, 1.0), ratio=(0.5, 2.0)),
        stages.RandomResize(scale=(0.3, 1.2)),
        stages.RandomFlip(),
        stages.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2),
    )
    line = pipeline(Album(), *more)
    prepare = prepare_for(line, seed=3)
    done = 0
    for record in line.source.reading(odb.World(), seed=3, epoch=0).records(START):
        sample = prepare.record(record)
        assert isinstance(sample, odb.sample.PreparedSample), record.where
        assert int(sample.token_types.sum()) == sum(image.features for image in sample.images)
        pixels = prepare.decode(0, sample.images).pixels()
        assert pixels.shape == (sum(image.patches for image in sample.images), 3 * 2 * 16 * 16)
        assert np.isfinite(pixels).all()
        done += 1
    assert done == 43
