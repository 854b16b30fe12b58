"""What the live view costs: one training run, in short stretches with and without the view, in turn.

    python tools/bench/live.py

The table is drawn on a pseudo-terminal, with TensorBoard and a callback. The overhead has two parts: the share of time
inside ``update()``, which the view itself keeps near 0.5 %, and how much longer a step takes outside of it (medians
over steps of equal work, because the machine may be busy with something else).
"""

import argparse
import itertools
import json
import os
import pty
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pipelines"))

import text_chat

import odb_stream as odb
from odb_stream.live import LiveView
from odb_stream.tiny_model import TinyTrainer


def stretch(
    trainer: TinyTrainer, batches: Iterator[Any], fixed: Any, seconds: float, update: Callable[[float], None] | None
) -> tuple[list[float], float, float]:
    """Seconds of each step on one fixed batch, outside ``update``; the seconds inside ``update``; and all seconds."""
    steps, inside = [], 0.0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        next(batches)  # the stream advances, but every step does the same work
        loss = trainer.train(*fixed)
        ended = time.perf_counter()
        steps.append(ended - begun)
        if update is not None:
            update(loss)
            inside += time.perf_counter() - ended
    return steps, inside, time.perf_counter() - started


def a_terminal() -> tuple[TextIO, list[int]]:
    """The writable end of a pseudo-terminal that a thread reads, and the sizes of what was read."""
    ours, theirs = pty.openpty()
    drawn: list[int] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                drawn.append(len(part))
        except OSError:
            return

    threading.Thread(target=read, daemon=True).start()
    return os.fdopen(theirs, "w"), drawn


def cost_of_idle_update(loader: odb.Loader, calls: int = 100_000) -> float:
    """Microseconds of an update that reads no report."""
    live = LiveView(loader, callback=print, every=1e9)
    begun = time.perf_counter()
    for _ in range(calls):
        live.update(1.0)
    return (time.perf_counter() - begun) / calls * 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=30)
    options.add_argument("--seconds", type=float, default=2.0, help="of a stretch")
    options.add_argument("--whole", type=float, default=30.0, help="seconds with the view and nothing in turn")
    options.add_argument("--budget", type=int, default=512, help="tokens of a batch")
    options.add_argument("--every", type=float, default=0.5)
    given = options.parse_args()
    torch.set_num_threads(1)
    os.environ.update(TERM="xterm", COLUMNS="120")
    terminal, drawn = a_terminal()
    screen, calls = sys.stderr, list[Any]()
    trainer = TinyTrainer(4096, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        odb.Loader(text_chat.build(max_length=given.budget), budget=odb.Budget(given.budget)) as loader,
    ):
        batches = itertools.chain.from_iterable(loader for _ in itertools.count())
        first = next(batches)
        fixed = first, odb.pop_step(first)
        stretch(trainer, batches, fixed, 2.0, None)
        idle = cost_of_idle_update(loader)
        sys.stderr = terminal
        steps: dict[bool, list[float]] = {True: [], False: []}
        try:
            with LiveView(loader, every=given.every, callback=calls.append, tensorboard=folder) as live:
                for number in range(given.pairs):
                    for on in (True, False) if number % 2 else (False, True):
                        update = live.update if on else None
                        steps[on] += stretch(trainer, batches, fixed, given.seconds, update)[0]
            with LiveView(loader, every=given.every, callback=calls.append, tensorboard=folder) as live:
                _, inside, whole = stretch(trainer, batches, fixed, given.whole, live.update)
        finally:
            sys.stderr = screen
    medians = {on: statistics.median(made) for on, made in steps.items()}
    share = inside / whole
    figures = {
        "milliseconds of a step": round(1e3 * medians[False], 3),
        "share of time inside update()": round(share, 5),
        "longer step outside update(), medians": round(medians[True] / medians[False] - 1, 5),
        "overhead": round((medians[True] / medians[False]) / (1 - share) - 1, 5),
        "microseconds of an update between looks": round(idle, 3),
        "steps": {"with": len(steps[True]), "without": len(steps[False])},
        "looks": len(calls),
        "bytes drawn": sum(drawn),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
