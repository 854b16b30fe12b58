"""``held_program.py LINES WORD PROGRAM ...`` runs a program up to a known point, where it stands still to be killed.

The point is where it has printed so many lines that hold the word; then it says ``STANDS``. A program that is killed on
the strength of its lines alone may be far ahead of who reads them, or at its end.
"""

import io
import runpy
import signal
import sys
from pathlib import Path

STANDS = "it stands still"


class HeldOutput(io.TextIOWrapper):
    """Standard output that does not return from the last of the lines."""

    lines: int
    word: str

    def write(self, text: str) -> int:
        written = super().write(text)
        self.lines -= self.word in text
        if self.lines == 0:
            super().write(f"\n{STANDS}\n")
            self.flush()
            while True:
                signal.pause()
        return written


def main(lines: int, word: str, program: str, *given: str) -> None:
    held = HeldOutput(sys.stdout.buffer, encoding=sys.stdout.encoding, write_through=True)
    held.lines, held.word = lines, word
    sys.stdout = held
    sys.argv = [program, *given]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
