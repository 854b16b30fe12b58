"""A program whose standard error is a terminal, and what it wrote there."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SECONDS = 60.0
"""After this a process counts as hung; none takes nearly as long."""

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""What hides the cursor, and what shows it again."""

PROGRAM = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from live_support import Clock, Script
from odb_stream.live import LiveView

clock, loader = Clock(), Script({loader})

def steps(live, count=20):
    for number in range(count):
        clock.now += 1
        loader.step(2, 500, 1000, others=((1, 1, 1),) * (loader.world.size - 1))
        live.update()

{body}
"""


class Ended(NamedTuple):
    """How a program ended: exit code, standard output, and what the terminal got."""

    code: int
    out: str
    drawn: str


def on_a_terminal(body: str, *, loader: str = "", hang_up: bool = False) -> Ended:
    """Run a program; with ``hang_up`` the terminal goes away, and then a line comes on standard input."""
    ours, theirs = pty.openpty()
    text = PROGRAM.format(folder=str(Path(__file__).parent), loader=loader, body=body)
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        start_new_session=True,
        text=True,
    )
    os.close(theirs)
    if hang_up:
        assert process.stdout is not None
        assert process.stdout.readline() == "hang up\n"
        os.close(ours)
        out, _ = process.communicate("go on\n", timeout=SECONDS)
        return Ended(process.returncode, out, "")
    drawn = b""
    try:
        while part := os.read(ours, 65536):
            drawn += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=SECONDS)
    return Ended(process.returncode, out, drawn.decode())
