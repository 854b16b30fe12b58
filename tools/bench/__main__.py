"""All benchmarks behind one command: each writes its JSON file, and the page is rewritten from all of them.

    python tools/bench [NAME ...] [options of one benchmark]
    make bench

Without names all benchmarks of the page run, in its order. ``page`` only writes the page.
"""

import argparse
import sys
import time
from pathlib import Path

import page
import results

BENCHMARKS = {name: module for name, (_, module, _) in page.SECTIONS.items()}


def parsed(name: str, words: list[str]) -> argparse.Namespace:
    module = BENCHMARKS[name]
    parser = argparse.ArgumentParser(
        prog=f"python tools/bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="folder of the JSON files")
    module.arguments(parser)
    return parser.parse_args(words)


def measure(name: str, words: list[str]) -> Path | None:
    """Run one benchmark and write its file; returns its folder, or None if it cannot run here."""
    options = parsed(name, words)
    started = time.perf_counter()
    figures = BENCHMARKS[name].run(options)
    if figures is None:
        return None
    path = results.save(name, figures, " ".join(["python tools/bench", name, *words]), options.out)
    print(f"{name}: {time.perf_counter() - started:.0f} s, written to {path.name}", flush=True)
    return path.parent


def main() -> None:
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(f"{__doc__}\nBenchmarks: {', '.join(BENCHMARKS)}. For the options: python tools/bench NAME --help")
        return
    names = []
    while words and (words[0] in BENCHMARKS or words[0] == "page"):
        names.append(words.pop(0))
    if words and len(names) != 1:
        sys.exit(f"{words[0]!r} is no benchmark: give {', '.join(BENCHMARKS)} or page; options need exactly one")
    folders = [results.FOLDER if name == "page" else measure(name, words) for name in names or BENCHMARKS]
    if results.FOLDER in folders:
        page.write()


if __name__ == "__main__":
    main()
