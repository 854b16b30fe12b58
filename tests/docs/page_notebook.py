"""Runs the blocks of one page in order, in the current folder; the arguments are a plan and a file for the results.

``python`` blocks share one namespace, as in a notebook; a block with a main guard is a program of its own. A first line
``# file: NAME`` saves the block under that name for later blocks to import or run. ``sh`` blocks are Bash scripts.
"""

import contextlib
import io
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

NAMED = re.compile(r"# file: ([\w./-]+)\n")
GUARD = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.M)


def run_blocks(plan: dict[str, Any], results: Path) -> None:
    """Run each block and write a line of JSON about it, ``good`` and its ``out``put; stop at the first failure."""
    names = ModuleType("page")
    sys.modules["page"] = names
    sys.path[0] = str(Path.cwd())
    exec(compile(plan["prelude"], "prelude", "exec"), names.__dict__)
    with results.open("a", encoding="utf-8") as file:
        for block in plan["blocks"]:
            result = _run(block, plan["prelude"], names)
            file.write(json.dumps(result) + "\n")
            file.flush()
            if not result["good"]:
                break


def _run(block: dict[str, Any], prelude: str, names: ModuleType) -> dict[str, Any]:
    text = block["text"]
    if block["language"] == "sh":
        return _finished(["bash", "-e", "-c", text])
    named = NAMED.match(text)
    if named:
        Path(named[1]).write_text(text, encoding="utf-8")
    if GUARD.search(text):
        name = named[1] if named else f"block_{block['line']}.py"
        if not named:
            Path(name).write_text(prelude + text, encoding="utf-8")
        return _finished([sys.executable, name])
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            # Empty lines in front, so that line numbers in a traceback are those of the page.
            exec(compile("\n" * (block["line"] - 1) + text, block["page"], "exec"), names.__dict__)
    except BaseException:  # noqa: BLE001 - SystemExit too: whatever a block raises ends the page there
        return {"good": False, "out": out.getvalue() + traceback.format_exc()}
    return {"good": True, "out": out.getvalue()}


def _finished(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    good = done.returncode == 0
    return {"good": good, "out": done.stdout if good else f"{done.stdout}{done.stderr}\nexit code {done.returncode}"}


if __name__ == "__main__":
    run_blocks(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
