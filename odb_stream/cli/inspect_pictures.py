"""The pictures of an inspection, from its plain form: lengths, policies, the window's curve, time per stage."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from odb_stream.cli.pictures import INK, PALETTE, QUIET, RULE, Picture, draw_bars, policies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Plain = Mapping[str, Any]

MOST_PARTS = len(PALETTE) - 1
"""Sources with a colour of their own; the smaller ones share one."""


def pictures(found: Plain) -> list[Picture]:
    """All pictures, in the order of the tables."""
    stages = len(found["times"])
    return [
        Picture("lengths", "histogram of tokens a sample", 3.0, lambda figure: _lengths(figure, found)),
        Picture("times", "time per stage", 0.9 + 0.26 * stages, lambda figure: _times(figure, found["times"])),
        policies(found["policies"]["figures"]),
        Picture("window", "critical ratio by window and lookahead", 2.7, lambda figure: _curves(figure, found)),
    ]


def _lengths(figure: "FigureBase", found: Plain) -> None:
    """By source, by modality, or both; where there is one of each, all samples."""
    histogram = found["histogram"]
    named = {"and source": shown_parts(histogram["by_source"]), "and modality": histogram["by_modality"]}
    panels = {words: parts for words, parts in named.items() if len(parts) > 1}
    if not panels:
        panels = {f"({histogram['by_modality'][0]['name']})": histogram["by_modality"]}
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (words, parts) in zip(grid, panels.items(), strict=True):
        _stack(axes, histogram, parts)
        axes.set(title=f"samples by length {words}", xlabel="tokens a sample" + _scale(histogram))
        _mark_budget(axes, found["settings"]["budget"], histogram["edges"])
        if len(parts) > 1:
            axes.legend(*_legend(parts), loc="best")
    grid[0].set_ylabel("samples")


def shown_parts(parts: Sequence[Plain]) -> list[Plain]:
    """The largest parts, and all others as one."""
    ordered = sorted(parts, key=lambda part: -part["lengths"]["count"])
    if len(ordered) <= MOST_PARTS + 1:
        return list(parts)
    rest = ordered[MOST_PARTS:]
    counts = [sum(column) for column in zip(*(part["counts"] for part in rest), strict=True)]
    return [*ordered[:MOST_PARTS], {"name": f"{len(rest)} others", "counts": counts}]


def _scale(histogram: Plain) -> str:
    return ", log scale" if histogram["scale"] == "log" else ""


def _stack(axes: "Axes", histogram: Plain, parts: Sequence[Plain]) -> None:
    """Bars of the bins, the parts on top of each other."""
    edges = histogram["edges"]
    widths = [end - start for start, end in pairwise(edges)]
    below = [0] * len(widths)
    for colour, part in zip(PALETTE, parts, strict=False):
        axes.bar(edges[:-1], part["counts"], widths, bottom=below, align="edge", color=colour)
        below = [sum(pair) for pair in zip(below, part["counts"], strict=True)]
    if histogram["scale"] == "log":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_tick_params(which="minor", length=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="y", linewidth=0.6)


def _legend(parts: Sequence[Plain]) -> tuple[list[Any], list[str]]:
    """Handles and labels, given outright, so that no name is taken for a sign to leave it out."""
    from matplotlib.patches import Patch

    return [Patch(color=colour) for colour, _ in zip(PALETTE, parts, strict=False)], [part["name"] for part in parts]


def _mark_budget(axes: "Axes", budget: int, edges: Sequence[int]) -> None:
    """A line at the budget, where samples come near it."""
    if budget <= edges[-1]:
        axes.axvline(budget, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            "budget", (budget, 0.5), (-3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
            rotation=90, ha="right", va="center", fontsize=8,
        )  # fmt: skip


def _times(figure: "FigureBase", rows: Sequence[Plain]) -> None:
    """Milliseconds a sample, one bar a stage."""
    axes = figure.subplots()
    names = [f"{row['source']}: {row['stage']}" if row["source"] else row["stage"] for row in rows]
    labels = [f"{row['milliseconds']:.3f} ms ({row['share']:.0%})" for row in rows]
    draw_bars(axes, names, [row["milliseconds"] for row in rows], labels, [PALETTE[2]] * len(rows))
    axes.set(title="time per stage, and its share of all", xlabel="ms a sample, in one process")


def _curves(figure: "FigureBase", found: Plain) -> None:
    """The critical ratio by window and by lookahead, what is suggested marked."""
    suggestion, layout = found["suggestion"], found["settings"]["layout"]
    grid = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(grid, ("window", "lookahead"), strict=True):
        _curve(axes, suggestion[name])
        unit = "samples" if name == "window" else "groups"
        axes.set(title=f"{name}: {suggestion[name]['value']} suggested", xlabel=f"{name} ({unit}), log scale")
    grid[0].set_ylabel(f"critical ratio, {layout}")


def _curve(axes: "Axes", suggested: Plain) -> None:
    values = [point["value"] for point in suggested["curve"]]
    ratios = [point["critical_ratio"] for point in suggested["curve"]]
    axes.plot(values, ratios, color=QUIET, marker="o", markersize=4, linewidth=1.4)
    place = values.index(suggested["value"])
    axes.plot([values[place]], [ratios[place]], color=PALETTE[5], marker="o", markersize=8)
    axes.annotate(
        f"{ratios[place]:.3f}", (values[place], ratios[place]), (0, 8), textcoords="offset points", ha="center"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.xaxis.set_tick_params(which="minor", length=0)
    axes.yaxis.set_major_formatter("{x:.3f}")
    axes.margins(y=0.25)
    axes.grid(linewidth=0.6, color=RULE)
