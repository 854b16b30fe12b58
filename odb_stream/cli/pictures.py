"""Pictures of inspections and simulations by matplotlib, without a display: a PNG of all of them, or SVG one by one."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odb_stream.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Plain = Mapping[str, Any]

# The palette of Okabe and Ito, told apart by readers of any colour vision; without its yellow and black, which vanish
# on a light or on a dark page.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
QUIET = "#8C8C8C"

# Drawn in these, and given the page's own colours in an SVG.
INK, RULE = "#111112", "#dcdcdd"
_ON_PAGE = {INK: "currentColor", RULE: "var(--rule, #8884)"}

WIDTH = 10.0
"""Of a picture, in inches."""
DPI = 120


@dataclass(frozen=True)
class Picture:
    """One picture: ``draw`` puts it onto an empty figure, or part of one, of this ``height`` in inches."""

    name: str
    words: str
    height: float
    draw: Callable[["FigureBase"], None]


def require_matplotlib(option: str) -> None:
    """Raise ConfigError, before a long run, where ``option`` asks for pictures and matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ConfigError(
            f'{option} draws with matplotlib, which cannot be imported ({error}): pip install "odb-stream[viz]"'
        ) from error


def png(pictures: Sequence[Picture], *, title: str) -> bytes:
    """All pictures below each other, as one PNG file."""
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
    """One picture as an SVG element for a page, in the page's colours of text and rules, and the same each time."""
    from matplotlib.figure import Figure

    file = io.StringIO()
    with _style(**{"svg.fonttype": "path", "svg.hashsalt": picture.name}):
        figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
        picture.draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for drawn, shown in _ON_PAGE.items():
        text = text.replace(drawn, shown)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)


def _style(**more: str) -> AbstractContextManager[None]:
    """How everything is drawn; ``text.parse_math`` is off because names are the user's and may hold a dollar sign."""
    import matplotlib

    inked = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "legend.labelcolor")
    style: Any = {  # the type that matplotlib gives its settings lists them all
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
        "text.parse_math": False,
        **more,
    }
    return matplotlib.rc_context(style)


def policies(rows: Sequence[Plain]) -> Picture:
    """Policies side by side: their critical ratio and padding."""
    return Picture("policies", "critical ratio and padding of each policy", 0.9 + 0.3 * len(rows), _policies(rows))


def _policies(rows: Sequence[Plain]) -> Callable[["FigureBase"], None]:
    def draw(figure: "FigureBase") -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        layouts = {row["layout"] for row in rows}
        names = [f"{row['policy']}, {row['layout']}" if len(layouts) > 1 else row["policy"] for row in rows]
        colours = [PALETTE[0] if row["policy"] == "anchored" else QUIET for row in rows]
        ratios = [max(1.0, row["critical_ratio"]) for row in rows]
        draw_bars(left, names, ratios, [f"{row['critical_ratio']:.3f}" for row in rows], colours, start=1.0)
        left.set(title="time of synchronous steps", xlabel="critical ratio (1 is ideal)")
        padding = [100 * row["padding_ratio"] for row in rows]
        draw_bars(right, names, padding, [f"{value:.1f} %" for value in padding], colours)
        right.set(title="padding", xlabel="padding (% of tokens in batches)")
        if len(layouts) == 1:
            left.set_ylabel(f"policy, {rows[0]['layout']}")

    return draw


def draw_bars(
    axes: "Axes",
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colours: Sequence[str],
    *,
    start: float = 0.0,
) -> None:
    """Horizontal bars from ``start`` on, the first on top, each with its label at its end."""
    places = range(len(names))
    widths = [value - start for value in values]
    bars = axes.barh(list(places), widths, left=start, color=list(colours), height=0.66)
    axes.bar_label(bars, labels=list(labels), padding=4, fontsize=8)
    axes.set_yticks(list(places), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(start, start + 1.18 * (max(widths) or 1.0))
    axes.tick_params(length=0)
    axes.grid(axis="x", linewidth=0.6)
    axes.spines["bottom"].set_visible(False)
