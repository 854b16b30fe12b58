"""The picture of batch quality: every policy on every long array, the critical ratio from 1 up; for the README."""

from pathlib import Path
from typing import Any

from curve_pictures import GREY, svg_of
from matplotlib.figure import Figure
from workloads import SAMPLES

from odb_stream.cli.pictures import PALETTE

RANKS = 8
POLICIES = {  # name in the figures -> words, colour, marker
    "packed (default)": ("odb_stream, packed", PALETTE[2], "D"),
    "anchored (default)": ("odb_stream, padded", PALETTE[0], "o"),
    "lhotse 2,048": ("lhotse, dynamic bucketing", PALETTE[3], "s"),
    "paper-window 256": ("published window policy", PALETTE[1], "^"),
    "gmt": ("all lengths known beforehand", GREY, "|"),
}


def write(figures: dict[str, Any], folder: Path) -> None:
    """``quality.svg``; the same each time."""
    folder.mkdir(exist_ok=True)
    (folder / "quality.svg").write_text(svg_of("quality", lambda: draw(figures)), encoding="utf-8")


def draw(figures: dict[str, Any]) -> Figure:
    """An array a line, a policy a mark."""
    rows = [one for one in figures["rows"] if one["ranks"] == RANKS and one["samples"] >= SAMPLES]
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
