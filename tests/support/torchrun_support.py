"""Programs under torchrun: started on a number of ranks, waited for, or killed with all their ranks.

``torchrun_support.py LINES WORD PROGRAM ...`` runs a program up to a known point, where it stands still to be killed:
where it has printed so many lines that hold the word; then it says ``STANDS``. A program that is killed on the strength
of its lines alone may be far ahead of who reads them, or at its end.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import children

SECONDS = 300.0
STANDS = "it stands still"


def start(
    program: Path, *given: object, folder: Path, ranks: int = 2, held: tuple[int, str] | None = None
) -> subprocess.Popen[str]:
    """Start a program, alone or under torchrun; its errors go to a file in the folder.

    ``held``: it stands still where it has printed so many lines with a word, and waits to be killed.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    hold = [__file__, *held] if held else []
    return subprocess.Popen(
        [sys.executable, *launch, *map(str, [*hold, program, *given])],
        stdout=subprocess.PIPE,
        stderr=(folder / "errors").open("a"),
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **quiet},
    )


def finish(job: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Wait for the end; what the program wrote into ``report.json``."""
    job.communicate(timeout=SECONDS)
    assert job.returncode == 0, (folder / "errors").read_text()[-4000:]
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def kill_held(job: subprocess.Popen[str]) -> None:
    """Kill the ranks of a program that was started held, and what started them, once it stands still."""
    assert job.stdout is not None
    assert any(line.strip() == STANDS for line in job.stdout), "it ended before"
    # Each rank leads a session of its own, so killing the launcher's group would leave them alive.
    for process in (job.pid, *children(job.pid)):
        with suppress(ProcessLookupError):  # a rank that saw another one's end may have ended by itself
            os.kill(process, signal.SIGKILL)
    job.wait(SECONDS)
    job.stdout.close()


def run_held(lines: int, word: str, program: str, *given: str) -> None:
    """Run a program whose standard output does not return from the last of the lines."""
    write = sys.stdout.write

    def held(text: str) -> int:
        nonlocal lines
        written = write(text)
        lines -= word in text
        if lines == 0:
            write(f"\n{STANDS}\n")
            sys.stdout.flush()
            while True:
                signal.pause()
        return written

    sys.stdout.write = held  # type: ignore[method-assign]
    sys.argv = [program, *given]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    run_held(int(sys.argv[1]), *sys.argv[2:])
