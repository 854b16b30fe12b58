"""The live table of a running loader, drawn on standard error while somebody watches it."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from odb_stream.cli.output import watched

SECONDS_BETWEEN = 0.25
"""Time between two drawings, at least."""


class LiveTable:
    """Redraws a table of rates and totals; draws nothing when off.

    Args:
        title: stands above the table.
        on: whether to draw at all; by default when standard error is a terminal.
    """

    def __init__(self, title: str, *, on: bool | None = None) -> None:
        self._title = title
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._live = Live(console=console, auto_refresh=False) if (watched() if on is None else on) else None
        self._started = self._drawn = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to draw again; ask before a report is made."""
        return self._live is not None and time.monotonic() - self._drawn >= SECONDS_BETWEEN

    def draw(self, report: Mapping[str, Any], loss: float | None = None) -> None:
        """Draw a loader's report, and the loss of the last step when training."""
        if self._live is None:
            return
        self._drawn = time.monotonic()
        table = live_table(self._title, report, seconds=self._drawn - self._started, loss=loss)
        self._live.update(table, refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def live_table(title: str, report: Mapping[str, Any], *, seconds: float, loss: float | None) -> Table:
    """Rates over the ``seconds`` since the start, and totals."""
    table = Table(title=title, show_header=False)
    table.add_column("name")
    table.add_column("value", justify="right", min_width=12)
    rates = {"samples/s": "emitted", "real tokens/s": "tokens", "padded tokens/s": "padded_tokens"}
    for name, key in rates.items():
        table.add_row(name, f"{report[key] / seconds:,.0f}" if seconds > 0 else "-")
    table.add_row("padding", f"{report['padding_ratio']:.2%}")
    table.add_row("utilisation", f"{report['real_utilisation']:.2%}")
    table.add_row("steps", f"{report['steps']:,}")
    table.add_row("samples", f"{report['emitted']:,}")
    if loss is not None:
        table.add_row("loss", f"{loss:.4f}")
    for reason, count in report["dropped"].items():
        table.add_row(f"dropped: {reason}", f"{count:,}")
    for stage, waited in report["wait_seconds"].items():
        table.add_row(f"waited: {stage}", f"{waited:.1f} s")
    table.add_row("time", f"{seconds:.1f} s")
    return table


def report_table(title: str, report: Mapping[str, Any]) -> Table:
    """A finished report, one figure a row; the figures over all ranks only where they differ from this rank's."""
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right", min_width=12)
    for name, value in report.items():
        if name == "global" and all(report.get(key) == figure for key, figure in value.items()):
            continue
        if isinstance(value, Mapping):
            if not value:
                table.add_row(name, "none")
            for key, figure in value.items():
                if isinstance(figure, Mapping):
                    figure = ", ".join(f"{number:,} {word}" for word, number in figure.items())
                table.add_row(f"{name.replace('_', ' ')}: {key}", _figure(key, figure))
        elif isinstance(value, list):
            table.add_row(f"{name}: first, last", f"{value[0]:.4f}, {value[-1]:.4f}" if value else "-")
        else:
            table.add_row(name.replace("_", " "), _figure(name, value))
    return table


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:.2%}" if name in ("padding_ratio", "real_utilisation") else f"{value:.3f}"
