"""Writes what comes out into the pages, in place of marked outputs that differ: ``python rewrite_outputs.py PAGE...``.

For a change that moves figures on purpose. Read the diff before you keep it. An output with a line ``...`` is left.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from fences import ROOT, read_fences
from outputs import ANYTHING
from preludes import names_a_store, run_as_listed
from running import Finding
from s3_server import running_server


def rewritten(text: str, found: list[Finding]) -> str:
    """The page with what came out; from the last block to the first, so that the lines before stay where they are."""
    lines = text.splitlines()
    for finding in sorted(found, key=lambda finding: -finding.fence.line):
        shown = finding.fence.text.splitlines()
        if finding.came is not None and ANYTHING not in shown:
            first = finding.fence.line - 1
            came = [line.rstrip() for line in finding.came.strip("\n").splitlines()]
            lines[first : first + len(shown)] = came
    return "\n".join(lines) + "\n"


def main(pages: list[str]) -> None:
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        fences = read_fences(text, page)
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
            folder = Path(name)
            store = servers.enter_context(running_server(folder)).endpoint if names_a_store(fences) else None
            found = run_as_listed(page, fences, folder / "page", store)
        for finding in found:
            print(finding)
        if new := [finding for finding in found if finding.came is not None]:
            (ROOT / page).write_text(rewritten(text, new), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
