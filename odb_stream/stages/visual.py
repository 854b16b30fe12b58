"""ExpandVisualTokens: one placeholder per image becomes one token per feature; then a long sample is cut."""

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import IGNORED_LABEL, Drop, IntArray, Sample, Stage
from odb_stream.stages.families import Pixels, QwenVision, VisualFamily
from odb_stream.stages.images.files import BadImage, Grid, PlannedImage
from odb_stream.stages.images.patches import Raster
from odb_stream.stages.processor import backend_tokenizer, describe
from odb_stream.stages.rope import rope_positions
from odb_stream.stages.tokenize import Truncate, kept_tokens

Block = tuple[int, int]
"""Begin and end of an image's tokens, with the tokens around them that belong to it."""


@dataclass(frozen=True)
class ExpandVisualTokens:
    """Give each image as many tokens as the model makes features of it.

    Reads ``input_ids``, ``labels`` and ``images``; comes after Tokenize and all image transforms. It expands the two
    rows (no loss on image tokens), counts the patches of each image (``grid`` and ``features`` in ``images``), and adds
    ``mm_token_type_ids`` (int32, (length,): 1 on image tokens) and ``rope`` (int32, (3, length): M-RoPE positions) for
    models that use them; samples without images carry them too.

    Samples with images are cut here by the ``max_length`` and ``truncate`` of Tokenize. A cut never splits an image's
    block, which reaches from the token before its placeholders to the token after them: the whole block is removed,
    with its image.

    Args:
        processor: the model's processor, of Qwen2-VL, Qwen2.5-VL or Qwen3-VL; with a ``family``, anything that holds a
            fast tokenizer.
        family: how another family of models measures images; see :class:`~odb_stream.stages.families.VisualFamily`.

    Returns ``Drop("image_aspect_ratio")`` (or another reason of the family), ``Drop("too_long")`` if the rule is "drop"
    or nothing fits, and ``Drop("nothing_supervised")`` if the cut leaves no label. Raises StageError unless the text
    has exactly one placeholder per image.

    The stage keeps the image processor, so a worker process that receives it imports transformers.
    """

    processor: InitVar[Any]
    family: VisualFamily = field(default=None, kw_only=True)  # type: ignore[assignment]  # None: the processor's own
    name: str = field(init=False)
    image_id: int = field(init=False)
    block_ids: tuple[int, int] | None = field(init=False)

    def __post_init__(self, processor: Any) -> None:
        family = self.family
        if family is None:
            family = QwenVision(getattr(processor, "image_processor", None))
        elif not isinstance(family, VisualFamily):
            raise ConfigError(f"family must be a VisualFamily such as FixedTokens(...), not {family!r}")
        tokenizer, name = backend_tokenizer(processor), describe(processor)

        def number(token: str) -> int:
            found = tokenizer.token_to_id(token)
            if found is None:
                raise ConfigError(f"{name} has no token {token!r}, which {type(family).__name__} needs for images")
            return found

        block = None if family.block is None else (number(family.block[0]), number(family.block[1]))
        values = {"family": family, "name": name, "image_id": number(family.image_token), "block_ids": block}
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __call__(self, sample: Sample) -> Sample | Drop:
        """Expand one sample; see the class."""
        images = self._measured(sample)
        if isinstance(images, Drop):
            return images
        ids, labels, blocks = self._expanded(sample, images)
        fields: dict[str, Any] = {**sample}
        max_length, truncate = fields.pop("deferred_cut", (None, "right"))
        if max_length is not None and len(ids) > max_length:
            kept = kept_blocks(len(ids), blocks, max_length, truncate)
            if kept is None:
                return Drop(
                    "too_long", f"{sample.where}: {len(ids)} tokens with its images, max_length is {max_length}"
                )
            pairs = zip(images, blocks, strict=True)
            images = [image for image, (start, end) in pairs if kept.start <= start and end <= kept.stop]
            fields["truncated"] = len(ids) - (kept.stop - kept.start)
            ids, labels = ids[kept], labels[kept]
            if not (labels[1:] != IGNORED_LABEL).any():
                return Drop("nothing_supervised", f"{sample.where}: no supervised token in the {len(ids)} tokens kept")
        fields |= {"input_ids": ids, "labels": labels}
        if images or "images" in fields:
            fields["images"] = images
        if self.family.merge_size is not None:
            types = (ids == self.image_id).astype(np.int32)
            grids = [image.grid for image in images if image.grid is not None]
            fields |= {"mm_token_type_ids": types, "rope": rope_positions(types, grids, self.family.merge_size)}
        return sample.with_fields(fields)

    def pixels(self, image: Image.Image, grid: Grid | None = None) -> Pixels:
        """The pixels of an RGB image, float32 of shape (patches, dimensions of a patch).

        Raises StageError if the image does not have the ``grid`` that was counted (if given), or if the family returns
        another shape than it measures. Damaged images are not a case here: ``open_image`` refuses them.
        """
        measured = self._checked(image, grid)
        pixels = self.family.pixels(image)
        if pixels.ndim != 2 or len(pixels) != measured[0] * measured[1] * measured[2] or pixels.dtype != np.float32:
            raise StageError(
                f"{type(self.family).__name__} gives pixels of shape {pixels.shape} and type {pixels.dtype} for an "
                f"image of size {image.size}, but measures {measured} patches: return float32 of (patches, dimensions)"
            )
        return pixels

    def rendered(self, image: Image.Image, grid: Grid | None = None) -> Raster | Pixels:
        """The pixels, or a raster that gives them and is an eighth of their size; raises as :meth:`pixels` does."""
        if isinstance(self.family, QwenVision):
            self._checked(image, grid)
            raster = self.family.raster(image)
            if raster is not None:
                return raster
        return self.pixels(image, grid)

    def _checked(self, image: Image.Image, grid: Grid | None) -> Grid:
        """The grid of an image. Raises StageError if it differs from the ``grid`` that was counted."""
        measured, _ = self.family.measure(*image.size)
        if grid is not None and tuple(grid) != measured:
            raise StageError(
                f"an image of {image.size[0]} x {image.size[1]} pixels gives {measured} patches, but {tuple(grid)} "
                "were counted: a transform's apply must return exactly the size that its plan says"
            )
        return measured

    def _measured(self, sample: Sample) -> list[PlannedImage] | Drop:
        """The images with their grids and features, or a Drop for an image that the family refuses."""
        images: list[PlannedImage] = []
        for image in sample.get("images") or []:
            if not isinstance(image, PlannedImage) or image.grid is not None:
                measured = isinstance(image, PlannedImage)
                problem = "are expanded already" if measured else "are not measured: put MeasureImages first"
                raise StageError(f"ExpandVisualTokens, {sample.where}: the images {problem}")
            try:
                grid, features = self.family.measure(*image.size)
            except BadImage as bad:
                return bad.drop(f"{sample.where}: image {image.name}")
            images.append(replace(image, grid=grid, features=features))
        return images

    def _expanded(self, sample: Sample, images: Sequence[PlannedImage]) -> tuple[IntArray, IntArray, list[Block]]:
        """Ids and labels with one token per feature, and the block of each image."""
        if "input_ids" not in sample:
            raise StageError(f"ExpandVisualTokens, {sample.where}: no input_ids: put Tokenize before it")
        ids = np.asarray(sample["input_ids"], dtype=np.int32)
        labels = np.array(sample.get("labels", ids), dtype=np.int32)
        places = np.flatnonzero(ids == self.image_id)
        if len(places) != len(images):
            raise StageError(
                f"ExpandVisualTokens, {sample.where}: {len(places)} placeholders {self.family.image_token!r} in the "
                f"tokens, but {len(images)} images: the chat template must write one for each image part, and plain "
                "text must not spell it"
            )
        # Some templates render images in answers: image tokens are input, never a target.
        labels[places] = IGNORED_LABEL
        repeats = np.ones(len(ids), dtype=np.intp)
        repeats[places] = [image.features for image in images]
        ends = np.cumsum(repeats)
        blocks = [self._block(ids, int(place), int(ends[place] - repeats[place]), int(ends[place])) for place in places]
        return np.repeat(ids, repeats), np.repeat(labels, repeats), blocks

    def _block(self, ids: npt.NDArray[np.int32], place: int, start: int, end: int) -> Block:
        """The block of the placeholder at ``place``, whose tokens run from start to end after expansion."""
        if self.block_ids is not None:
            start -= int(place > 0 and ids[place - 1] == self.block_ids[0])
            end += int(place + 1 < len(ids) and ids[place + 1] == self.block_ids[1])
        return start, end


def kept_blocks(length: int, blocks: Sequence[Block], max_length: int, truncate: Truncate) -> slice | None:
    """Which tokens of a too long sample to keep if no block may be split; None if none fit, or the rule is "drop".

    Example: 10 tokens with a block from 3 to 8 and a ``max_length`` of 5: "right" keeps tokens 0 to 2, "left" keeps
    tokens 8 and 9.
    """
    if truncate == "drop":
        return None
    kept = kept_tokens(length, max_length, truncate)
    start, stop = kept.start, kept.stop
    for first, end in blocks:
        if first < start < end:
            start = end
        if first < stop < end:
            stop = first
    return slice(start, stop) if start < stop else None


def expander(stages: Iterable[Stage]) -> ExpandVisualTokens | None:
    """The stage of a pipeline that counts and renders its images; None for a pipeline without images."""
    return next((stage for stage in stages if isinstance(stage, ExpandVisualTokens)), None)
