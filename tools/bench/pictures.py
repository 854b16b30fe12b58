"""The pictures of the pages, SVG files that are readable on light and on dark pages: batch quality, and the curves."""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from workloads import SAMPLES

from odb_stream.inspection.pictures import PALETTE

GREY = "#767e88"
"""Of text and lines: it contrasts with white and with a dark page alike (4.1 and 4.6 to 1)."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "legend.labelcolor"), GREY
    ),
}
LINES = {  # (workload, layout) -> colour, dash, marker: distinct without colours too
    ("chat", "padded"): (PALETTE[0], "-", "o"),
    ("mixed", "padded"): (PALETTE[5], "-", "s"),
    ("chat", "packed"): (PALETTE[0], ":", "o"),
    ("mixed", "packed"): (PALETTE[5], ":", "s"),
}
PANELS: dict[str, tuple[str, float, float, tuple[str, ...]]] = {  # figure -> title, lowest value, factor, layouts
    "critical_ratio": ("critical ratio (1 is ideal)", 0.99, 1, ("padded", "packed")),
    "padding_ratio": ("padding (% of tokens in batches)", 0, 100, ("padded",)),  # packed rows have none
    "max_delay": ("longest wait of a sample (groups)", 0, 1, ("padded", "packed")),
}
SHOWN = {
    "window": tuple(PANELS), "budget": ("critical_ratio", "padding_ratio"), "workers": ("ratio",),
}  # fmt: skip
XLABELS = {
    "window": "window (samples)", "budget": "budget (tokens)", "lookahead": "lookahead (groups)", "ranks": "ranks",
}  # fmt: skip
POLICIES = {  # name in the figures -> words, colour, marker
    "packed (default)": ("odb_stream, packed", PALETTE[2], "D"),
    "anchored (default)": ("odb_stream, padded", PALETTE[0], "o"),
    "lhotse 2,048": ("lhotse, dynamic bucketing", PALETTE[3], "s"),
    "paper-window 256": ("published window policy", PALETTE[1], "^"),
    "gmt": ("all lengths known beforehand", GREY, "|"),
}
Points = Sequence[dict[str, Any]]


def write_curves(figures: dict[str, Any], folder: Path) -> None:
    """One file a setting, ``tuning-NAME.svg``."""
    folder.mkdir(exist_ok=True)
    for axis in (*XLABELS, "workers"):
        (folder / f"tuning-{axis}.svg").write_text(svg(axis, partial(draw_curve, axis, figures)), encoding="utf-8")


def write_quality(figures: dict[str, Any], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "quality.svg").write_text(svg("quality", partial(draw_quality, figures)), encoding="utf-8")


def svg(name: str, drawn: Callable[[], Figure]) -> str:
    """What is drawn in the common style as the text of a file, the same each time."""
    file = io.StringIO()
    style: Any = {**STYLE, "svg.hashsalt": name}  # the type that matplotlib gives its settings lists them all
    with matplotlib.rc_context(style):
        drawn().savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.S)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def draw_curve(axis: str, figures: dict[str, Any]) -> Figure:
    chosen = SHOWN.get(axis, ("critical_ratio",))
    figure = Figure(figsize=(1.0 + 3.1 * max(2, len(chosen)), 3.1), layout="constrained")
    points = figures[axis]["points"] if axis == "workers" else figures[axis]
    for axes, panel in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        if panel == "ratio":
            speed(axes, points)
        else:
            lines(axes, points, panel)
        axes.set_xlabel(XLABELS.get(axis, "workers"))
        axes.grid(linewidth=0.6)
        axes.tick_params(length=0)
    return figure


def lines(axes: Axes, points: Points, key: str) -> None:
    """A line for each workload in these layouts, over powers of two."""
    title, lowest, factor, layouts = PANELS[key]
    for (name, layout), (colour, dash, marker) in LINES.items():
        own = [one for one in points if (one["workload"], one["layout"]) == (name, layout)]
        if layout in layouts:
            heights = [factor * one[key] for one in own]
            values = [one["value"] for one in own]
            axes.plot(values, heights, color=colour, linestyle=dash, marker=marker, label=f"{name}, {layout}")
    places = list(dict.fromkeys(one["value"] for one in points))
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place // 1024}k" if place >= 1024 else str(place) for place in places])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.set(title=title, ylim=(lowest, None))  # after the lines: their heights give the upper end


def speed(axes: Axes, points: Points) -> None:
    """Samples a second as bars, over those of one worker."""
    names = [str(one["value"]) for one in points]
    bars = axes.bar(names, [one["ratio"] for one in points], color=PALETTE[0], width=0.6)
    axes.bar_label(bars, labels=[f"{one['ratio']:.2f}" for one in points], padding=3, color=GREY)
    axes.set(title="samples a second, over those of one worker")
    axes.margins(y=0.12)


def draw_quality(figures: dict[str, Any]) -> Figure:
    """The critical ratio with 8 ranks from 1 up: a long array a line, a policy a mark."""
    rows = [one for one in figures["rows"] if one["ranks"] == 8 and one["samples"] >= SAMPLES]
    arrays = list(dict.fromkeys(one["array"] for one in rows))[::-1]
    figure = Figure(figsize=(7.6, 0.34 * len(arrays) + 1.3), layout="constrained")
    axes = figure.subplots()
    for policy, (words, colour, marker) in POLICIES.items():
        own = {one["array"]: one["critical_ratio"] for one in rows if one["policy"] == policy}
        places = [arrays.index(array) for array in own]
        axes.plot(list(own.values()), places, marker, color=colour, label=words, markersize=9 if marker == "|" else 6)
    axes.set_yticks(range(len(arrays)), [array.replace("_like", "-like") for array in arrays])
    axes.set_xlim(left=0.99)
    axes.set_xlabel("critical ratio with 8 ranks: time of synchronous steps, 1 is ideal")
    axes.grid(axis="x", linewidth=0.6)
    axes.tick_params(length=0)
    figure.legend(loc="outside upper left", ncols=3, handletextpad=0.2, columnspacing=1.2)
    return figure
