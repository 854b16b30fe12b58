"""The report of a finished run as a table."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


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
