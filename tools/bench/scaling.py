"""How costs grow: agreeing on steps with up to 4,096 ranks, a sample's share of the work, and memory over an epoch.

    python tools/bench scaling [--most-ranks 4096] [--most-samples 1000000]

``agreement``: CPU time and gathered bytes of one rank, by the programs that real ranks run, on prepared answers.
``sample``: CPU time per sample of planning alone (window and groups), from ten thousand to a million lengths.
``memory``: the resident memory of a process that streams an epoch of that many samples; each size has a process of its
own.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from alignment import FOOTPRINT, eight_ranks, lengths, many_ranks
from results import table

from odb_stream.batching.simulate.figures import LengthPacker

HELD = 128
"""Groups that a rank plans in a steady round: the default lookahead."""


def agreement(ranks: int) -> dict[str, Any]:
    """One rank of many: steady rounds, and rounds of a drain in which one rank in sixteen has data."""
    active = max(1, ranks // 16)
    steady = many_ranks([HELD] * ranks, [False] * ranks, rounds=3, repeats=3)
    drain = many_ranks([HELD] * active + [0] * (ranks - active), [False] * active + [True] * (ranks - active), 3, 3)
    return {"ranks": ranks, "steady": steady, "drain": drain}


def planning(samples: int) -> float:
    """Microseconds of CPU time per sample, from its length to its group, at the default window."""
    packer = LengthPacker(lengths(samples), FOOTPRINT, window=1024, lookahead=HELD)
    number = 0
    started = time.process_time()
    while not packer.exhausted:
        for _ in range(packer.begin_round(number)):
            packer.next_group()
        number += 1
    return (time.process_time() - started) / samples * 1e6


MEMORY = """
import json, sys
import numpy as np
import odb_stream as odb

class Same:
    "As many samples as asked for, of 20 to 400 tokens, that take no room themselves."
    tokens = np.arange(400, dtype=np.int32)
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, index): return {"input_ids": self.tokens[: 20 + index * 7919 % 381]}

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

marks, seen = [], 0
with odb.Loader(odb.Pipeline(odb.FromDataset(Same(int(sys.argv[1])))), budget=odb.Budget(tokens=16_384)) as loader:
    for batch in loader:
        seen += odb.pop_step(batch).samples
        if seen >= 9_000 and not marks or seen >= int(sys.argv[1]):
            marks.append(resident())
print(json.dumps(marks))
"""


def memory(samples: int) -> dict[str, Any]:
    """Mebibytes of a process after 9,000 samples and at the end of the epoch."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(samples)], capture_output=True, text=True, check=True)
    early, *_, late = json.loads(done.stdout)
    return {"samples": samples, "mib_after_9000": early, "mib_at_the_end": late}


def run(options: argparse.Namespace) -> dict[str, Any]:
    ranks = [number for number in (8, 64, 512, 1024, 4096) if number <= options.most_ranks]
    sizes = [10**power for power in range(4, 10) if 10**power <= options.most_samples]
    found: dict[str, Any] = {"epoch_of_8_ranks": eight_ranks(5), "agreement": [], "sample": [], "memory": []}
    for number in ranks:
        found["agreement"].append(agreement(number))
        print(found["agreement"][-1], flush=True)
    for size in sizes:
        found["sample"].append({"samples": size, "microseconds": min(planning(size) for _ in range(3))})
        print(found["sample"][-1], flush=True)
    if Path("/proc/self/status").exists():
        for size in sizes:
            found["memory"].append(memory(size))
            print(found["memory"][-1], flush=True)
    return found


def page(figures: dict[str, Any]) -> str:
    rows = []
    for one in figures["agreement"]:
        steady, drain = one["steady"], one["drain"]
        rows.append([
            one["ranks"], steady["ms_a_round"], steady["ms_a_step"], steady["bytes_a_rank_a_step"],
            drain["ms_a_step"], drain["bytes_a_rank_a_step"],
        ])  # fmt: skip
    whole = figures["epoch_of_8_ranks"]
    parts = [
        f"Agreeing on steps, one rank's CPU time; a steady round has {HELD} steps, a drain round one rank in sixteen "
        f"active. A whole epoch of 8 ranks with uneven data ({whole['steps']} steps in {whole['rounds']} rounds of at "
        f"most 32): {whole['ms_a_step']:.3f} ms and {whole['bytes_a_rank_a_step']} bytes a step.",
        table(["ranks", "ms a steady round", "ms a step", "bytes a step that a rank sends",
               "drain: ms a step", "drain: bytes a step"], rows),
        "Planning, CPU time a sample at the default window, and resident memory of a process that streams an epoch:",
    ]  # fmt: skip
    held = {one["samples"]: one for one in figures["memory"]}
    rows = []
    for one in figures["sample"]:
        there = held.get(one["samples"])
        rows.append([
            one["samples"], one["microseconds"],
            there and round(there["mib_after_9000"]), there and round(there["mib_at_the_end"]),
        ])  # fmt: skip
    parts.append(table(["samples", "µs a sample", "MiB after 9,000 samples", "MiB at the end"], rows))
    return "\n\n".join(parts)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most-ranks", type=int, default=4096)
    parser.add_argument("--most-samples", type=int, default=1_000_000)
