"""The pictures of an inspection or a simulation, drawn by matplotlib without a display: one PNG, or an SVG for each."""

import io
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from odb_stream.batching.simulate.figures import Figures
from odb_stream.inspection.figures import Histogram, Subset
from odb_stream.inspection.report import Inspection
from odb_stream.inspection.times import StageTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# The palette of Okabe and Ito, which readers of any colour vision can tell apart; without its yellow and black, which
# are invisible on a light or on a dark page.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
QUIET = "#8C8C8C"

# Text and rules are drawn in these colours; an SVG replaces them by the colours of the page, light or dark.
INK, RULE = "#111112", "#dcdcdd"
_ON_PAGE = {INK: "currentColor", RULE: "var(--rule, #8884)"}

WIDTH = 10.0
"""Width of a picture in inches."""
DPI = 120

COLOURED_SOURCES = len(PALETTE) - 1
"""Number of sources with a colour of their own; all smaller sources share the last colour."""


@dataclass(frozen=True)
class Picture:
    """One picture: ``draw`` draws it on an empty figure, or on part of one. ``height`` is in inches.

    ``words`` says what it shows to readers who cannot see it.
    """

    name: str
    words: str
    height: float
    draw: Callable[["FigureBase"], None]


def all_pictures(found: Inspection) -> list[Picture]:
    """All pictures of an inspection, in the order of the tables."""
    stages = len(found.times)
    return [
        Picture("lengths", "histogram of tokens a sample", 3.0, lambda figure: _lengths(figure, found)),
        Picture("times", "time per stage", 0.9 + 0.26 * stages, lambda figure: _times(figure, found.times)),
        policies(found.policies.figures),
        Picture("window", "critical ratio by window and lookahead", 2.7, lambda figure: _curves(figure, found)),
    ]


def policies(rows: Sequence[Figures]) -> Picture:
    """The critical ratio and the padding of several policies side by side."""
    words, height = "critical ratio and padding of each policy", 0.9 + 0.3 * len(rows)
    return Picture("policies", words, height, lambda figure: _policies(figure, rows))


def png(pictures: Sequence[Picture], *, title: str) -> bytes:
    """The pictures below each other, as one PNG file."""
    from matplotlib.figure import Figure

    heights = [picture.height for picture in pictures]
    file = io.BytesIO()
    with _style():
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained", facecolor="white")
        figure.suptitle(title, fontsize=12)
        parts = figure.subfigures(len(pictures), 1, squeeze=False, height_ratios=heights)[:, 0]
        for picture, part in zip(pictures, parts, strict=True):
            picture.draw(part)
        figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def svg(picture: Picture) -> str:
    """One picture as an SVG element for a page, in the page's colours of text and rules. Equal figures, equal bytes."""
    from matplotlib.figure import Figure

    file = io.StringIO()
    # By default matplotlib draws random ids; several pictures on one page also need different ones.
    with _style(**{"svg.fonttype": "path", "svg.hashsalt": picture.name}):
        figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
        picture.draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]  # without the XML header, which is not allowed inside HTML
    for drawn, shown in _ON_PAGE.items():
        text = text.replace(drawn, shown)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)


def _style(**more: str) -> AbstractContextManager[None]:
    import matplotlib

    inked = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "legend.labelcolor")
    style: Any = {  # matplotlib types its settings as a union of all their names
        **dict.fromkeys(inked, INK),
        "axes.edgecolor": RULE,
        "grid.color": RULE,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "text.parse_math": False,  # names are the user's and may contain a dollar sign
        **more,
    }
    return matplotlib.rc_context(style)


# ---------------------------------------------------------------------------------------------------------------------
# Lengths


def _lengths(figure: "FigureBase", found: Inspection) -> None:
    """The histogram by source, by modality, or both; with one of each, all samples together."""
    histogram = found.histogram
    named = {"and source": coloured(histogram.by_source), "and modality": coloured(histogram.by_modality)}
    panels = {words: subsets for words, subsets in named.items() if len(subsets) > 1}
    panels = panels or {f"({histogram.by_modality[0].name})": named["and modality"]}
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    scale = ", log scale" if histogram.scale == "log" else ""
    for axes, (words, subsets) in zip(grid, panels.items(), strict=True):
        _stack(axes, histogram, [counts for _, counts in subsets])
        axes.set(title=f"samples by length {words}", xlabel="tokens a sample" + scale)
        _mark_budget(axes, found.settings.budget, histogram.edges)
        if len(subsets) > 1:
            axes.legend(*_legend([name for name, _ in subsets]), loc="best")
    grid[0].set_ylabel("samples")


def coloured(subsets: Sequence[Subset]) -> list[tuple[str, Sequence[int]]]:
    """Name and counts by bin of the largest subsets; all others are added up as one, so that every colour differs."""
    if len(subsets) <= COLOURED_SOURCES + 1:
        return [(subset.name, subset.counts) for subset in subsets]
    ordered = sorted(subsets, key=lambda subset: -subset.lengths.count)
    largest, others = ordered[:COLOURED_SOURCES], ordered[COLOURED_SOURCES:]
    counts = [sum(column) for column in zip(*(subset.counts for subset in others), strict=True)]
    return [*((subset.name, subset.counts) for subset in largest), (f"{len(others)} others", counts)]


def _stack(axes: "Axes", histogram: Histogram, stacked: Sequence[Sequence[int]]) -> None:
    """The bars of the bins, the subsets on top of each other."""
    edges = histogram.edges
    widths = [end - start for start, end in pairwise(edges)]
    below = [0] * len(widths)
    for colour, counts in zip(PALETTE, stacked, strict=False):
        axes.bar(edges[:-1], counts, widths, bottom=below, align="edge", color=colour)
        below = [sum(pair) for pair in zip(below, counts, strict=True)]
    if histogram.scale == "log":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_tick_params(which="minor", length=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="y", linewidth=0.6)


def _legend(names: list[str]) -> tuple[list[Any], list[str]]:
    """Handles and labels. Passed explicitly, because matplotlib hides labels that start with an underscore."""
    from matplotlib.patches import Patch

    return [Patch(color=colour) for colour, _ in zip(PALETTE, names, strict=False)], names


def _mark_budget(axes: "Axes", budget: int, edges: Sequence[int]) -> None:
    if budget <= edges[-1]:  # a line far to the right would squeeze the histogram
        axes.axvline(budget, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            "budget", (budget, 0.5), (-3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
            rotation=90, ha="right", va="center", fontsize=8,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Times, policies and curves


def _times(figure: "FigureBase", rows: Sequence[StageTime]) -> None:
    axes = figure.subplots()
    names = [f"{row.source}: {row.stage}" if row.source else row.stage for row in rows]
    labels = [f"{row.milliseconds:.3f} ms ({row.share:.0%})" for row in rows]
    _draw_bars(axes, names, [row.milliseconds for row in rows], labels, [PALETTE[2]] * len(rows))
    axes.set(title="time per stage, and its share of all", xlabel="ms a sample, in one process")


def _policies(figure: "FigureBase", rows: Sequence[Figures]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    several = len({row.layout for row in rows}) > 1
    names = [f"{row.policy}, {row.layout}" if several else row.policy for row in rows]
    colours = [PALETTE[0] if row.policy == "anchored" else QUIET for row in rows]
    ratios = [max(1.0, row.critical_ratio) for row in rows]  # an epoch without tokens has the ratio 0
    _draw_bars(left, names, ratios, [f"{row.critical_ratio:.3f}" for row in rows], colours, start=1.0)
    left.set(title="time of synchronous steps", xlabel="critical ratio (1 is ideal)")
    padding = [100 * row.padding_ratio for row in rows]
    _draw_bars(right, names, padding, [f"{value:.1f} %" for value in padding], colours)
    right.set(title="padding", xlabel="padding (% of tokens in batches)")
    if not several:
        left.set_ylabel(f"policy, {rows[0].layout}")


def _curves(figure: "FigureBase", found: Inspection) -> None:
    """The critical ratio by window and by lookahead, with the suggested values marked."""
    suggestion = found.suggestion
    panels = (("window", "samples", suggestion.window), ("lookahead", "groups", suggestion.lookahead))
    grid = figure.subplots(1, 2, sharey=True)
    for axes, (name, unit, suggested) in zip(grid, panels, strict=True):
        values = [point.value for point in suggested.curve]
        ratios = [point.critical_ratio for point in suggested.curve]
        axes.plot(values, ratios, color=QUIET, marker="o", markersize=4, linewidth=1.4)
        ratio = ratios[values.index(suggested.value)]
        axes.plot([suggested.value], [ratio], color=PALETTE[5], marker="o", markersize=8)
        axes.annotate(f"{ratio:.3f}", (suggested.value, ratio), (0, 8), textcoords="offset points", ha="center")
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [str(value) for value in values])
        axes.xaxis.set_tick_params(which="minor", length=0)
        axes.yaxis.set_major_formatter("{x:.3f}")
        axes.margins(y=0.25)
        axes.grid(linewidth=0.6, color=RULE)
        axes.set(title=f"{name}: {suggested.value} suggested", xlabel=f"{name} ({unit}), log scale")
    grid[0].set_ylabel(f"critical ratio, {found.settings.layout}")


def _draw_bars(
    axes: "Axes",
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colours: Sequence[str],
    *,
    start: float = 0.0,
) -> None:
    """Horizontal bars from ``start`` to their values, the first on top, each with its label at its end."""
    places = range(len(names))
    widths = [value - start for value in values]
    bars = axes.barh(list(places), widths, left=start, color=list(colours), height=0.66)
    axes.bar_label(bars, labels=list(labels), padding=4, fontsize=8)
    axes.set_yticks(list(places), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    # Room for the labels; a row of zeros has no width to scale.
    axes.set_xlim(start, start + 1.18 * (max(widths) or 1.0))
    axes.tick_params(length=0)
    axes.grid(axis="x", linewidth=0.6)
    axes.spines["bottom"].set_visible(False)
