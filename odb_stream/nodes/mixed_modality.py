"""Mixed modality: on a step where another rank has images, a rank without images gets a minimal one without effect.

Sharded training gathers the weights of the vision encoder in a collective that every rank must enter. Plain DDP waits
for a gradient of every parameter, so it needs the image also on steps where no rank has one. The image is appended to
the shortest sample, after all of its tokens: causal attention hides it from them, and it carries no label.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from odb_stream.sample import IGNORED_LABEL, FloatArray, IntArray, PreparedImage, PreparedSample
from odb_stream.stages.rope import rope_positions
from odb_stream.stages.visual import ExpandVisualTokens


@dataclass(frozen=True)
class DummyRule:
    """The image that a rank without images gets; ``always`` gives it also on steps where no rank has one."""

    image: "DummyImage"
    always: bool

    def applies(self, samples: tuple[PreparedSample, ...], *, any_rank_has_images: bool) -> bool:
        """Whether the batch of these samples needs the image."""
        return (self.always or any_rank_has_images) and not any(sample.images for sample in samples)


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
        """The dummy image of a pipeline, from its stage that expands visual tokens."""
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
        """The number of tokens that it adds to a sample."""
        return len(self.input_ids)

    def given_to(self, samples: tuple[PreparedSample, ...]) -> tuple[PreparedSample, ...]:
        """The samples, with this image appended to the shortest one: a padded batch grows least then."""
        shortest = min(range(len(samples)), key=lambda index: samples[index].length)
        return (*samples[:shortest], self._appended(samples[shortest]), *samples[shortest + 1 :])

    def _appended(self, sample: PreparedSample) -> PreparedSample:
        ids = np.concatenate([sample.input_ids, self.input_ids])
        labels = np.concatenate([sample.labels, np.full(self.tokens, IGNORED_LABEL, dtype=np.int32)])
        changed = sample._replace(input_ids=ids, labels=labels, images=(self.image,), pixels=self.pixels)
        if self.merge_size is None:
            return changed
        types = (ids == self.image_id).astype(np.int32)
        return changed._replace(token_types=types, rope=rope_positions(types, [self.image.grid], self.merge_size))
