"""The command ``check``: reads shards from end to end and reports their contents and their problems."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from odb_stream.cli.options import Anonymous, AsJson, Endpoint, ShardUrls, storage_options
from odb_stream.cli.output import print_json, print_table, tracked
from odb_stream.errors import ShardError

if TYPE_CHECKING:
    from odb_stream.shards.check import ShardReport
    from odb_stream.storage.options import Storage

EXAMPLE = "odb-stream check 'shards/chat-*.tar' --json"

PROBLEMS_FOUND = 1
"""Exit code if a shard has a problem."""


def check(urls: ShardUrls, endpoint: Endpoint = None, anonymous: Anonymous = False, as_json: AsJson = False) -> None:
    """Check shards: counts, cut ends, repeated keys, json and txt members, and the index if there is one.

    Reads all shards, whatever it finds. Exits with 0 if all are good, and with 1 if one has a problem.
    """
    reports = _checked(urls, storage_options(endpoint, anonymous=anonymous))
    problems = sum(len(report.problems) for report in reports)
    samples = sum(report.samples for report in reports)
    if as_json:
        shards = [{**asdict(report), "good": report.good} for report in reports]
        print_json({"good": not problems, "samples": samples, "shards": shards})
    else:
        _print_reports(reports, title=f"{samples} samples in {len(reports)} shards, problems: {problems or 'none'}")
    if problems:
        raise typer.Exit(PROBLEMS_FOUND)


def _checked(urls: list[str], options: "Storage") -> list["ShardReport"]:
    """A report on each shard, and on each address that names no shard."""
    from odb_stream import storage
    from odb_stream.shards.check import ShardReport, check_shard

    reports = []
    found: list[str] = []
    for pattern in storage.patterns(urls):
        try:
            found.extend(storage.expand(pattern, options))
        except ShardError as error:
            reports.append(ShardReport(storage.log_name(pattern), 0, 0, 0, "missing", (str(error),)))
    addresses = storage.expand(found, options) if found else ()
    return [*reports, *(check_shard(address, options) for address in tracked("checking", addresses))]


def _print_reports(reports: list["ShardReport"], *, title: str) -> None:
    table = Table(title=title)
    table.add_column("shard", overflow="fold")
    for name in ("samples", "lost", "members", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("index")
    table.add_column("state")
    for report in reports:
        counts = map(str, (report.samples, report.lost, report.members, report.bytes))
        table.add_row(report.address, *counts, report.index, Text("good") if report.good else Text("bad", style="red"))
    print_table(table)
    for report in reports:
        for problem in report.problems:
            typer.echo(f"problem: {problem}")
