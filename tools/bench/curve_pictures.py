"""The pictures of the curves: one SVG a setting, readable on light and on dark pages."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from odb_stream.cli.pictures import PALETTE

GREY = "#767e88"
"""Of text and lines: on white and on a dark page it is told apart alike (4.1 and 4.6 to 1)."""
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
LINES = {  # (workload, layout) -> colour, dash, marker: told apart without colours too
    ("chat", "padded"): (PALETTE[0], "-", "o"),
    ("mixed", "padded"): (PALETTE[5], "-", "s"),
    ("chat", "packed"): (PALETTE[0], ":", "o"),
    ("mixed", "packed"): (PALETTE[5], ":", "s"),
}
XLABELS = {
    "window": "window (samples)", "budget": "budget (tokens)", "lookahead": "lookahead (groups)", "ranks": "ranks",
}  # fmt: skip
Points = Sequence[dict[str, Any]]


def write(figures: dict[str, Any], folder: Path) -> None:
    """One file a setting, ``tuning-NAME.svg``."""
    folder.mkdir(exist_ok=True)
    for axis in (*XLABELS, "workers"):
        (folder / f"tuning-{axis}.svg").write_text(svg(axis, figures), encoding="utf-8")


def svg(axis: str, figures: dict[str, Any]) -> str:
    """One picture as text, the same each time."""
    return svg_of(axis, lambda: draw(axis, figures))


def svg_of(name: str, drawn: Callable[[], Figure]) -> str:
    """What is drawn in the common style as the text of a file, the same each time."""
    file = io.StringIO()
    style: Any = {**STYLE, "svg.hashsalt": name}  # the type that matplotlib gives its settings lists them all
    with matplotlib.rc_context(style):
        drawn().savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.S)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def draw(axis: str, figures: dict[str, Any]) -> Figure:
    """One picture."""
    panels = {"window": (critical, padding, delay), "budget": (critical, padding), "workers": (speed,)}
    chosen = panels.get(axis, (critical,))
    figure = Figure(figsize=(1.0 + 3.1 * max(2, len(chosen)), 3.1), layout="constrained")
    points = figures[axis]["points"] if axis == "workers" else figures[axis]
    for axes, panel in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        panel(axes, points)
        axes.set_xlabel(XLABELS.get(axis, "workers"))
        axes.grid(linewidth=0.6)
        axes.tick_params(length=0)
    return figure


def lines(axes: Axes, points: Points, key: str, *, factor: float = 1.0, layouts: Sequence[str]) -> None:
    """A line for each workload in these layouts, over powers of two."""
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


def critical(axes: Axes, points: Points) -> None:
    """The time of synchronous steps over the ideal one."""
    lines(axes, points, "critical_ratio", layouts=("padded", "packed"))
    axes.set(title="critical ratio (1 is ideal)", ylim=(0.99, None))


def padding(axes: Axes, points: Points) -> None:
    """Padding of the padded layout; packed rows have none."""
    lines(axes, points, "padding_ratio", factor=100, layouts=("padded",))
    axes.set(title="padding (% of tokens in batches)", ylim=(0, None))


def delay(axes: Axes, points: Points) -> None:
    """How long the sample that waits longest does."""
    lines(axes, points, "max_delay", layouts=("padded", "packed"))
    axes.set(title="longest wait of a sample (groups)", ylim=(0, None))


def speed(axes: Axes, points: Points) -> None:
    """Samples a second as bars, over those of one worker."""
    names = [str(one["value"]) for one in points]
    bars = axes.bar(names, [one["ratio"] for one in points], color=PALETTE[0], width=0.6)
    axes.bar_label(bars, labels=[f"{one['ratio']:.2f}" for one in points], padding=3, color=GREY)
    axes.set(title="samples a second, over those of one worker")
    axes.margins(y=0.12)
