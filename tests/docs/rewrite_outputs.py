"""Rewrites the marked outputs of pages with what their programs print: ``python rewrite_outputs.py PAGE...``.

For a change that moves figures on purpose; read the diff before you commit it. Outputs with a line ``...`` stay as they
are.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from fences import ROOT, read_fences
from preludes import names_a_store, run_as_listed
from running import ANYTHING, Finding
from s3_server import running_server
from shell_settings import forget_shell_settings


def rewritten(text: str, found: list[Finding]) -> str:
    """The page with the new outputs, written from the last to the first so that earlier line numbers stay valid."""
    lines = text.splitlines()
    for finding in sorted(found, key=lambda finding: -finding.fence.line):
        shown = finding.fence.text.splitlines()
        if finding.printed is not None and ANYTHING not in shown:
            first = finding.fence.line - 1
            printed = [line.rstrip() for line in finding.printed.strip("\n").splitlines()]
            lines[first : first + len(shown)] = printed
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
        if new := [finding for finding in found if finding.printed is not None]:
            (ROOT / page).write_text(rewritten(text, new), encoding="utf-8")


if __name__ == "__main__":
    forget_shell_settings()
    main(sys.argv[1:])
