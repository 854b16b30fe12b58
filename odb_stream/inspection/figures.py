"""Spreads, histograms and sums that describe the samples, as a whole and by source and modality."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from odb_stream.inspection.collect import Collected

BINS = 32
LOG_FROM = 30.0
"""The bins of a histogram grow geometrically if the longest sample is more than this many times the 5th percentile."""
PERCENTILES = (5, 25, 50, 75, 95, 99)

Numbers = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How numbers spread. ``cv`` is the standard deviation over the mean, ``p5`` to ``p99`` are percentiles."""

    count: int
    mean: float
    cv: float
    min: int
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: int

    @classmethod
    def of(cls, numbers: Numbers) -> "Spread":
        """The spread of at least one number."""
        values = np.asarray(numbers, dtype=np.int64)
        mean = float(values.mean())
        percentiles = {f"p{percent}": float(np.percentile(values, percent)) for percent in PERCENTILES}
        cv = float(values.std()) / mean if mean else 0.0
        return cls(count=len(values), mean=mean, cv=cv, min=int(values.min()), max=int(values.max()), **percentiles)

    @property
    def values(self) -> tuple[float, ...]:
        """The smallest number, the percentiles, and the largest number."""
        return (self.min, self.p5, self.p25, self.p50, self.p75, self.p95, self.p99, self.max)


@dataclass(frozen=True, kw_only=True)
class Subset:
    """The samples of one source or of one modality: their ``tokens``, ``lengths``, and ``counts`` by bin."""

    name: str
    tokens: int
    lengths: Spread
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Samples by length. Bin i holds the lengths ``edges[i] <= length < edges[i + 1]``.

    ``scale`` says how the bins grow. Sources and modalities without samples are left out.
    """

    scale: Literal["linear", "log"]
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    by_source: tuple[Subset, ...]
    by_modality: tuple[Subset, ...]

    @classmethod
    def of(cls, collected: Collected) -> "Histogram":
        """The histogram of the collected samples."""
        lengths = np.array(collected.lengths, dtype=np.int64)
        sources, images = np.array(collected.sources), np.array(collected.images)
        scale, edges = bins(lengths)
        by_source = [(name, sources == number) for number, name in enumerate(collected.names)]
        by_modality = [("text only", images == 0), ("with images", images > 0)]
        return cls(
            scale=scale,
            edges=edges,
            counts=counted(lengths, edges),
            by_source=tuple(_subset(name, lengths[those], edges) for name, those in by_source if those.any()),
            by_modality=tuple(_subset(name, lengths[those], edges) for name, those in by_modality if those.any()),
        )


def bins(lengths: npt.NDArray[np.int64]) -> tuple[Literal["linear", "log"], tuple[int, ...]]:
    """How bins grow, and the integer edges of at most ``BINS`` bins that hold all lengths."""
    low, high = int(lengths.min()), int(lengths.max()) + 1
    scale: Literal["linear", "log"] = "log" if high / max(1.0, np.percentile(lengths, 5)) > LOG_FROM else "linear"
    if scale == "log":
        marks = np.geomspace(max(1, low), high, BINS + 1)
    else:
        width = -(-(high - low) // BINS)
        marks = np.arange(low, high + width, width, dtype=np.float64)
    # As a set, because rounding merges narrow bins at the short end; a geometric row cannot start at a length of 0.
    edges = sorted({round(mark) for mark in marks.tolist()} | {low})
    return scale, tuple(edges)


def counted(lengths: npt.NDArray[np.int64], edges: tuple[int, ...]) -> tuple[int, ...]:
    """How many lengths fall into each bin."""
    places = np.searchsorted(np.array(edges), lengths, side="right") - 1
    counts: list[int] = np.bincount(places, minlength=len(edges) - 1).tolist()
    return tuple(counts)


def _subset(name: str, lengths: npt.NDArray[np.int64], edges: tuple[int, ...]) -> Subset:
    tokens = int(lengths.sum())
    return Subset(name=name, tokens=tokens, lengths=Spread.of(lengths), counts=counted(lengths, edges))


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Tokens with loss. ``share`` is of all tokens; ``p25`` to ``p75`` are quartiles of the samples' own shares."""

    tokens: int
    share: float
    p25: float
    p50: float
    p75: float

    @classmethod
    def of(cls, collected: Collected) -> "Supervised":
        """The supervised tokens of the collected samples."""
        supervised, lengths = np.array(collected.supervised), np.array(collected.lengths)
        quartiles = np.percentile(supervised / lengths, (25, 50, 75)).tolist()
        total = int(supervised.sum())
        return cls(tokens=total, share=total / int(lengths.sum()), p25=quartiles[0], p50=quartiles[1], p75=quartiles[2])


@dataclass(frozen=True, kw_only=True)
class ImageFigures:
    """The images of all samples. Width and height, in pixels, are those of the upright image in its file; patches and
    tokens are those that the model gets after all transforms."""

    images: int
    samples_with_images: int
    images_a_sample: Spread
    """Over the samples that have images."""
    width: Spread
    height: Spread
    file_bytes: Spread
    patches: Spread
    tokens: Spread

    @classmethod
    def of(cls, collected: Collected) -> "ImageFigures | None":
        """The images of the collected samples; None without any."""
        if not collected.files:
            return None
        columns = zip(("file_bytes", "width", "height", "patches", "tokens"), np.array(collected.files).T, strict=True)
        having = [count for count in collected.images if count]
        return cls(
            images=len(collected.files),
            samples_with_images=len(having),
            images_a_sample=Spread.of(having),
            **{name: Spread.of(column) for name, column in columns},
        )
