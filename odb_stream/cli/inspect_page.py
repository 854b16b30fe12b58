"""An inspection as one page of HTML that needs nothing besides itself: its tables, and its pictures as SVG."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from odb_stream.cli import inspect_sheets
from odb_stream.cli.inspect_pictures import pictures
from odb_stream.cli.pictures import Picture, svg
from odb_stream.cli.sheets import Sheet

Plain = Mapping[str, Any]

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


def page(found: Plain, *, title: str) -> str:
    """The whole page; every word that comes from the data is escaped."""
    drawn = {picture.name: picture for picture in pictures(found)}
    sheets = inspect_sheets
    sections: list[tuple[list[Sheet], Picture | None]] = [
        ([sheets.samples(found), sheets.lengths(found)], drawn["lengths"]),
        ([sheets.per_sample(found), *([sheets.images(found)] if found["images"] is not None else [])], None),
        ([sheets.times(found)], drawn["times"]),
        ([sheets.policies(found)], drawn["policies"]),
        ([sheets.settings(found), sheets.budget(found)], drawn["window"]),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(section(*parts) for parts in sections),
            "</body></html>\n",
        ]
    )


def section(sheets: Iterable[Sheet], picture: Picture | None) -> str:
    """Some tables, and a picture with its words for those who do not see it."""
    drawn = ""
    if picture is not None:
        drawn = f'<div role="img" aria-label="{escape(picture.words)}">{svg(picture)}</div>'
    return f"<section>{''.join(map(table, sheets))}{drawn}</section>"


def table(sheet: Sheet) -> str:
    """A sheet as an HTML table under its title."""
    head = "".join(_cell("th", sheet, place, text) for place, text in enumerate(sheet.headings))
    head = f"<thead><tr>{head}</tr></thead>" if any(sheet.headings) else ""
    body = "".join(
        f"<tr>{''.join(_cell('td', sheet, place, text) for place, text in enumerate(row))}</tr>" for row in sheet.rows
    )
    note = f"<p>{escape(sheet.note)}</p>" if sheet.note else ""
    return f"<h2>{escape(sheet.title)}</h2><table>{head}<tbody>{body}</tbody></table>{note}"


def _cell(tag: str, sheet: Sheet, place: int, text: str) -> str:
    kind = ' class="words"' if sheet.is_words(place) else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
