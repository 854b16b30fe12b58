"""Mixed modality: on a step where another rank has images, a rank without any gets a minimal one of no effect.

Sharded training gathers the vision encoder's weights in a collective that every rank must enter. Plain DDP waits for a
gradient of every parameter, so it needs the image also on steps on which no rank has one. The image is appended to the
shortest sample, behind all of its tokens: causal attention keeps it from being seen, and it carries no label.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from odb_stream.sample import IGNORED_LABEL, FloatArray, IntArray, PreparedImage, PreparedSample
from odb_stream.stages.rope import rope_positions
from odb_stream.stages.visual import ExpandVisualTokens


@dataclass(frozen=True)
class DummyRule:
    """Which image a rank without one is given, and whether also on steps on which no rank has any."""

    image: "DummyImage"
    always: bool


@dataclass(frozen=True)
class DummyImage:
    """A black image of the smallest size, as tokens and pixels."""

    input_ids: IntArray
    image: PreparedImage
    pixels: FloatArray
    image_id: int
    merge_size: int | None

    @classmethod
    def of(cls, expand: ExpandVisualTokens) -> "DummyImage":
        """The dummy image of a pipeline, by its last stage."""
        family = expand.family
        grid, features = family.measure(1, 1)
        before, after = expand.block_ids if expand.block_ids is not None else ((), ())
        ids = [*np.atleast_1d(before), *[expand.image_id] * features, *np.atleast_1d(after)]
        picture = Image.new("RGB", (1, 1))
        image = PreparedImage(np.empty(0, dtype=np.uint8), (), grid, features)
        pixels = expand.pixels(picture, grid)
        return cls(np.array(ids, dtype=np.int32), image, pixels, expand.image_id, family.merge_size)

    @property
    def tokens(self) -> int:
        """Tokens that it adds to a sample."""
        return len(self.input_ids)

    def given_to(self, samples: tuple[PreparedSample, ...]) -> tuple[PreparedSample, ...]:
        """The samples, the shortest of them with this image behind its tokens."""
        place = min(range(len(samples)), key=lambda place: samples[place].length)
        return (*samples[:place], self._appended(samples[place]), *samples[place + 1 :])

    def _appended(self, sample: PreparedSample) -> PreparedSample:
        ids = np.concatenate([sample.input_ids, self.input_ids])
        labels = np.concatenate([sample.labels, np.full(self.tokens, IGNORED_LABEL, dtype=np.int32)])
        changed = sample._replace(input_ids=ids, labels=labels, images=(self.image,), pixels=self.pixels)
        if self.merge_size is None:
            return changed
        types = (ids == self.image_id).astype(np.int32)
        return changed._replace(token_types=types, rope=rope_positions(types, [self.image.grid], self.merge_size))
