"""An inspection as one self-contained HTML page: its tables, and its pictures as SVG."""

from collections.abc import Iterable
from html import escape

from odb_stream.inspection import tables
from odb_stream.inspection.pictures import Picture, all_pictures, svg
from odb_stream.inspection.report import Inspection
from odb_stream.inspection.tables import TextTable

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1d; --page: #ffffff; --quiet: #5c5c61; --rule: #dcdcdd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --page: #161618; --quiet: #a3a3a9; --rule: #3c3c40; }
}
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: var(--ink); background: var(--page);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
section { margin: 2.5rem 0; overflow-x: auto; }
h2 { font-size: 1.05rem; margin: 1.5rem 0 0.4rem; }
p { color: var(--quiet); margin: 0.4rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--quiet); }
.words { text-align: left; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; color: var(--ink); }
"""


def page(found: Inspection, *, title: str) -> str:
    """The whole page. Every text is escaped, because names of sources and reasons of drops are the user's own."""
    drawn = {picture.name: picture for picture in all_pictures(found)}
    sections = [
        # The histogram in text is left out: the picture shows it better.
        _section([tables.samples(found), tables.lengths(found)], drawn["lengths"]),
        _section([tables.per_sample(found), *tables.images(found)]),
        _section([tables.times(found)], drawn["times"]),
        _section([tables.policies(found)], drawn["policies"]),
        _section([tables.settings(found), tables.budget(found)], drawn["window"]),
    ]
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>"
    )
    return "\n".join([head, *sections, "</body></html>\n"])


def _section(shown: Iterable[TextTable], picture: Picture | None = None) -> str:
    drawn = ""
    if picture is not None:
        drawn = f'<div role="img" aria-label="{escape(picture.words)}">{svg(picture)}</div>'
    return f"<section>{''.join(map(_table, shown))}{drawn}</section>"


def _table(table: TextTable) -> str:
    head = f"<thead>{_row('th', table, table.headings)}</thead>" if any(table.headings) else ""
    body = "".join(_row("td", table, row) for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2><table>{head}<tbody>{body}</tbody></table>{note}"


def _row(tag: str, table: TextTable, texts: Iterable[str]) -> str:
    classes = [' class="words"' if column in table.left else "" for column in range(len(table.headings))]
    cells = [f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(classes, texts, strict=True)]
    return f"<tr>{''.join(cells)}</tr>"
