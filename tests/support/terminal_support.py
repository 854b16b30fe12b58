"""Programs whose standard error is a terminal, and what they drew there."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from waiting import PATIENCE

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""The sequences that hide and show the cursor."""

PROGRAM = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from live_support import Clock, Script
from odb_stream.live import LiveView

clock, loader = Clock(), Script()

def steps(live, count=20, loader=loader):
    for number in range(count):
        clock.now += 1
        loader.step(2, 500, 1000, others=((1, 1, 1),) * (loader.world.size - 1))
        live.update()

"""


class Ended(NamedTuple):
    """How a program ended: exit code, standard output, and what the terminal got."""

    code: int
    out: str
    drawn: str


def drawn_on(terminal: int) -> bytes:
    """Everything that a terminal gets until its last user closes it."""
    drawn = b""
    try:
        while part := os.read(terminal, 65536):
            drawn += part
    except OSError:  # Linux reports the closed end as an error
        pass
    os.close(terminal)
    return drawn


def on_a_terminal(*arguments: object, hang_up: bool = False) -> Ended:
    """Run Python with these arguments. With ``hang_up`` the terminal goes away once the program prints a line; then
    the program gets a line."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
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
    drawn = b"" if hang_up else drawn_on(ours)
    out, _ = process.communicate("go on\n" if hang_up else None, timeout=PATIENCE)
    return Ended(process.returncode, out, drawn.decode())
