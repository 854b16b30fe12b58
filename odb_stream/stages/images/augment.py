"""Augmentation: image transforms that draw their numbers first and change pixels last."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from odb_stream.errors import ConfigError, StageError
from odb_stream.sample import Drop, Op, Sample
from odb_stream.seeds import generator
from odb_stream.stages.images.files import BadImage, ImageSize, PlannedImage, to_png

Parameters = tuple[float, ...]


class Plan(NamedTuple):
    """What a transform will do to one image: its drawn numbers, and the image's size afterwards."""

    parameters: Parameters
    size: ImageSize


class _Transform:
    """A stage that transforms the images of a sample, with draws of its own for each."""

    def __call__(self, sample: Sample) -> Sample | Drop:
        """The sample with every image transformed, or a Drop if one cannot be decoded."""
        name = type(self).__name__
        done: list[PlannedImage] = []
        for number, image in enumerate(sample.get("images") or []):
            if not isinstance(image, PlannedImage):
                raise StageError(f"{name}, {sample.where}: the images are not measured yet: put MeasureImages first")
            if image.grid is not None:
                raise StageError(f"{name}, {sample.where}: the tokens are counted already: put ExpandVisualTokens last")
            # Apart by stage and image, so that one more transform or image changes no other's draws.
            draws = generator(sample, f"{name}/{sample.stage}/{number}")
            try:
                done.append(self._one(image, draws, sample.stage))
            except BadImage as bad:
                return bad.drop(f"{sample.where}: image {image.name}")
        return sample.with_fields({**sample, "images": done}) if done else sample

    def _one(self, image: PlannedImage, draws: np.random.Generator, place: int) -> PlannedImage:
        raise NotImplementedError


class ImageTransform(_Transform):
    """Base of transforms whose resulting size is known before the pixels are.

    A subclass defines ``plan`` and ``apply``, and is picklable (a frozen dataclass, say). Every image of a sample gets
    draws of its own, from (seed, epoch, sample, place of the stage, number of the image) alone. Planning only records
    the numbers in the sample; they are applied when the image is decoded, which may happen in another process.
    """

    def plan(self, size: ImageSize, draws: np.random.Generator) -> Plan | tuple[Parameters, ImageSize]:
        """Draw what to do to an image of (width, height) ``size``; return the numbers and the exact size afterwards."""
        raise NotImplementedError

    def apply(self, image: Image.Image, parameters: Parameters) -> Image.Image:
        """Return the transformed RGB image, of the planned size. Must depend on the two arguments alone."""
        raise NotImplementedError

    def _one(self, image: PlannedImage, draws: np.random.Generator, place: int) -> PlannedImage:
        parameters, size = self.plan(image.size, draws)
        numbers = tuple(float(number) for number in parameters)
        return image.planned(self, Op(place, numbers), (int(size[0]), int(size[1])))


class PixelTransform(_Transform):
    """Base of transforms that must see the pixels to know the size (cropping to content, say).

    A subclass defines ``transform``. The image is decoded in the stage and kept as a lossless PNG, which costs time and
    memory that an ImageTransform does not need.
    """

    def transform(self, image: Image.Image, draws: np.random.Generator) -> Image.Image:
        """Return the transformed RGB image; ``draws`` belong to this image of this sample."""
        raise NotImplementedError

    def _one(self, image: PlannedImage, draws: np.random.Generator, place: int) -> PlannedImage:  # noqa: ARG002
        changed = self.transform(image.decoded(), draws)
        return replace(image, data=to_png(changed), size=changed.size, ops=(), transforms=())


@dataclass(frozen=True)
class RandomResize(ImageTransform):
    """Resize both sides by one factor drawn evenly from ``scale`` = (lowest, highest), bicubic; no side below 1."""

    scale: tuple[float, float] = field(kw_only=True)

    def __post_init__(self) -> None:
        _require_range("RandomResize.scale", self.scale)

    def plan(self, size: ImageSize, draws: np.random.Generator) -> Plan:
        """Parameters: width and height."""
        factor = draws.uniform(*self.scale)
        width, height = (max(1, round(side * factor)) for side in size)
        return Plan((width, height), (width, height))

    def apply(self, image: Image.Image, parameters: Parameters) -> Image.Image:
        """Resize to the drawn size."""
        width, height = map(int, parameters)
        if image.size == (width, height):
            return image
        return image.resize((width, height), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Cut out a rectangle, at a place drawn evenly.

    Args:
        scale: (lowest, highest) share of the image's area, at most 1.
        ratio: (lowest, highest) width over height, drawn evenly on a logarithmic scale; None keeps the image's own.
            A side longer than the image's is shortened to it.
    """

    scale: tuple[float, float] = field(kw_only=True)
    ratio: tuple[float, float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _require_range("RandomCrop.scale", self.scale, highest=1.0)
        if self.ratio is not None:
            _require_range("RandomCrop.ratio", self.ratio)

    def plan(self, size: ImageSize, draws: np.random.Generator) -> Plan:
        """Parameters: left, top, width and height."""
        area = draws.uniform(*self.scale) * size[0] * size[1]
        ratio = size[0] / size[1]
        if self.ratio is not None:
            ratio = math.exp(draws.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
        width = min(size[0], max(1, round(math.sqrt(area * ratio))))
        height = min(size[1], max(1, round(math.sqrt(area / ratio))))
        left = int(draws.integers(0, size[0] - width, endpoint=True))
        top = int(draws.integers(0, size[1] - height, endpoint=True))
        return Plan((left, top, width, height), (width, height))

    def apply(self, image: Image.Image, parameters: Parameters) -> Image.Image:
        """Cut it out."""
        left, top, width, height = map(int, parameters)
        return image.crop((left, top, left + width, top + height))


@dataclass(frozen=True)
class RandomFlip(ImageTransform):
    """Swap left and right with this probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not _is_number(self.probability) or not 0 <= self.probability <= 1:
            raise ConfigError(f"RandomFlip.probability is {self.probability!r}, but must be a number from 0 to 1")

    def plan(self, size: ImageSize, draws: np.random.Generator) -> Plan:
        """Parameters: 1 to mirror the image, 0 to keep it."""
        return Plan((float(draws.random() < self.probability),), size)

    def apply(self, image: Image.Image, parameters: Parameters) -> Image.Image:
        """Mirror it, or not."""
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if parameters[0] else image


@dataclass(frozen=True)
class ColorJitter(ImageTransform):
    """Change brightness, then contrast, then saturation, each by a factor of its own; the size does not change.

    Args:
        brightness, contrast, saturation: the largest change, so 0.2 draws factors from 0.8 to 1.2 evenly (never below
            0); or the (lowest, highest) factor itself. 0, the default, changes nothing.
    """

    brightness: float | tuple[float, float] = field(default=0.0, kw_only=True)
    contrast: float | tuple[float, float] = field(default=0.0, kw_only=True)
    saturation: float | tuple[float, float] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if not _is_number(value):
                _require_range(f"ColorJitter.{name}", value, zero=True)
            elif value < 0:
                raise ConfigError(f"ColorJitter.{name} is {value!r}, but must be at least 0, or (lowest, highest)")

    def plan(self, size: ImageSize, draws: np.random.Generator) -> Plan:
        """Parameters: the three factors."""
        ranges = map(_factors, (self.brightness, self.contrast, self.saturation))
        return Plan(tuple(draws.uniform(low, high) for low, high in ranges), size)

    def apply(self, image: Image.Image, parameters: Parameters) -> Image.Image:
        """Apply the factors that are not 1."""
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for enhancer, factor in zip(enhancers, parameters, strict=True):
            if factor != 1:
                image = enhancer(image).enhance(factor)
        return image


def _factors(change: float | tuple[float, float]) -> tuple[float, float]:
    return (change[0], change[1]) if isinstance(change, tuple | list) else (max(0.0, 1 - change), 1 + change)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_range(name: str, value: Any, *, highest: float = math.inf, zero: bool = False) -> None:
    """Raise a ConfigError unless the value is a pair (lowest, highest) of numbers above 0, or from 0 on if ``zero``."""
    fine = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
    if not fine or not value[0] <= value[1] <= highest or value[0] < 0 or (value[0] == 0 and not zero):
        limits = f"{'from 0' if zero else 'above 0'}{f' up to {highest:g}' if math.isfinite(highest) else ''}"
        raise ConfigError(f"{name} is {value!r}, but must be a pair (lowest, highest) of numbers {limits}")
