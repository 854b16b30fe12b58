"""The table of a live view, and the screen that redraws it in place."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from odb_stream.live.verdict import TRAINER

SPANS = ("recent", "overall")


class Screen:
    """Draws on standard error, always in the same place, from the first drawing until it is closed."""

    def __init__(self) -> None:
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        # Printed lines appear above the table, but only if standard output is a terminal: results for a pipe or a file
        # must still go there.
        self._live: Live | None = Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())

    def draw(self, figures: Mapping[str, Any], title: str) -> None:
        """Draw the figures. If the terminal is gone, nothing is drawn and the run continues."""
        if self._live is not None:
            self._live.start()
            self._live.update(live_table(figures, title), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen and restore cursor, standard output and standard error."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):  # a terminal that is gone has no cursor to restore
                live.stop()


def live_table(figures: Mapping[str, Any], title: str) -> Group:
    """The figures as a table with the verdict below; with several ranks, those of all ranks beside this rank's."""
    several = figures["ranks"] > 1
    table = Table(title=title or None)
    table.add_column("")
    names = [f"rank {figures['rank']}\n", f"{figures['ranks']} ranks\n"] if several else [""]
    for name in names:
        for span in SPANS:
            table.add_column(f"{name}{span}", justify="right", min_width=9, no_wrap=True)
    for label, cells in _rows(figures, several):
        table.add_row(label, *cells)
    return Group(table, Text(figures["verdict"]))


def _rows(figures: Mapping[str, Any], several: bool) -> Iterator[tuple[str, list[str]]]:
    """The label and cells of each row: recent and overall of this rank, then recent and overall of all ranks."""
    everyone = figures["global"]
    owners = [figures, everyone] if several else [figures]
    spans = [owner[span] for owner in owners for span in SPANS]
    yield "samples/s", [_rate(span["samples_per_second"]) for span in spans]
    yield "real tokens/s", [_rate(span["tokens_per_second"]) for span in spans]
    yield "padded tokens/s", [_rate(span["padded_tokens_per_second"]) for span in spans]
    yield "padding", [f"{span['padding']:.2%}" for span in spans]
    yield "utilisation", [f"{span['utilisation']:.2%}" for span in spans]
    if several:
        yield "imbalance", ["", "", *(f"{everyone[span]['imbalance']:.3f}" for span in SPANS)]
    for stage, share in figures["recent"]["wait_share"].items():
        name = f"waited: {stage}" if stage == TRAINER else f"loader waited: {stage}"
        yield name, [f"{share:.1%}", f"{figures['overall']['wait_seconds'][stage]:.1f} s"]
    yield "steps", [f"{figures['recent']['steps']:,}", f"{figures['overall']['steps']:,}"]
    yield "samples", [cell for owner in owners for cell in ("", f"{owner['samples']:,}")]
    for reason in sorted({reason for owner in owners for reason in owner["dropped"]}):
        counts = [f"{owner['dropped'].get(reason, 0):,}" for owner in owners]
        yield f"dropped: {reason}", [cell for count in counts for cell in ("", count)]
    if figures["loss"] is not None:
        yield "loss", [f"{figures['loss']:.4f}"]
    yield "time", [f"{figures[span]['seconds']:.1f} s" for span in SPANS]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
