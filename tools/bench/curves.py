"""How the settings change batches and speed: window, budget, lookahead, ranks by simulation, workers by a real Loader.

    python tools/bench curves [--samples-a-rank 10000] [--samples 6000] [--rounds 5]

Each setting varies over a range while the others keep their defaults, on two seeded workloads and in both layouts. The
figures of batches depend only on the lengths, so they are the same on every machine. ``workers`` streams chats from tar
shards through chat template and tokenizer with 0, 1, 2 and 4 workers in turn. The run also rewrites the pictures and
tables of the tuning guide.
"""

import argparse
import re
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pictures
from loading import BUDGET, pipeline_of, rates, write_chats
from results import FOLDER, median_ratio, table
from workloads import workload

import odb_stream as odb
from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import LengthPacker, deal, simulate

WORKLOADS = ("chat", "mixed")
LAYOUTS = ("padded", "packed")
STAND = {"ranks": 8, "budget": BUDGET, "window": 1024, "lookahead": 128}
"""The values of the settings that are not varied."""
RANGES = {
    "window": (64, 128, 256, 512, 1024, 2048, 4096),
    "budget": (2048, 4096, 8192, 16_384, 32_768, 65_536),
    "lookahead": (8, 16, 32, 64, 128, 256),
    "ranks": (1, 2, 4, 8, 16, 32, 64),
}
WORKERS = (0, 1, 2, 4)
BYTES_A_TOKEN = 8
"""Memory per token of a sample that waits: an id and a label of 32 bits each."""
GUIDE = FOLDER.parent / "tuning.md"
Point = dict[str, Any]


def point(axis: str, value: int, name: str, layout: str, samples_a_rank: int) -> Point:
    """The figures of one setting at one value."""
    at = STAND | {axis: value}
    footprint = Footprint(layout, odb.Budget(at["budget"]))  # type: ignore[arg-type]
    lengths = workload(name, samples_a_rank * at["ranks"])
    ranks = deal(lengths, at["ranks"])
    planning = {"window": at["window"], "lookahead": at["lookahead"]}
    found = simulate(ranks, policy="anchored", footprint=footprint, **planning)
    return {
        "workload": name,
        "layout": layout,
        "value": value,
        "steps": found.steps,
        "critical_ratio": round(found.critical_ratio, 4),
        "padding_ratio": round(found.padding_ratio, 4),
        "utilisation": round(found.real_utilisation, 4),
        "left_out": round(found.dropped / len(lengths), 4),
        "max_delay": found.max_delay,
        "read_before_the_first_batch": read_before_the_first_batch(ranks[0], footprint, **planning),
        "window_megabytes": round(at["window"] * BYTES_A_TOKEN * sum(lengths) / len(lengths) / 1e6, 2),
    }


def read_before_the_first_batch(lengths: list[int], footprint: Footprint, *, window: int, lookahead: int) -> int:
    """Samples that a rank prepares before its first step: the first round's window and its groups."""
    fitting = [length for length in lengths if length <= footprint.budget.tokens]
    packer = LengthPacker(fitting, footprint, window=window, lookahead=lookahead)
    groups = [packer.next_group() for _ in range(packer.begin_round(0))]
    return len(packer.planner.window) + sum(len(group.samples) for group in groups if group is not None)


def speeds(samples: int, rounds: int) -> dict[str, Any]:
    """Samples a second by number of workers, in alternating rounds; ratios to one worker within each round."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        write_chats(Path(name), samples)
        loaders = {}
        for number in WORKERS:
            loader = odb.Loader(pipeline_of(f"{name}/*.tar"), budget=odb.Budget(tokens=BUDGET), workers=number)
            loaders[number] = stack.enter_context(loader)
        found = rates(loaders, samples, rounds)
    points = []
    for number, own in found.items():
        rate, ratio = round(statistics.median(own)), round(median_ratio(own, found[1]), 3)
        points.append({"value": number, "samples_per_second": rate, "ratio": ratio})
    return {"samples": samples, "rounds": rounds, "points": points}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All curves. The guide and its pictures are rewritten too, unless the figures go to another folder."""
    figures: dict[str, Any] = {"stand": STAND, "samples_a_rank": options.samples_a_rank}
    for axis in RANGES:
        figures[axis] = [
            point(axis, value, name, layout, options.samples_a_rank)
            for name in WORKLOADS for layout in LAYOUTS for value in RANGES[axis]
        ]  # fmt: skip
        print(f"{axis}: {len(figures[axis])} points", flush=True)
    figures["workers"] = speeds(options.samples, options.rounds)
    print(f"workers: {figures['workers']['points']}", flush=True)
    if options.out == FOLDER:
        publish(figures)
    return figures


def publish(figures: dict[str, Any]) -> None:
    pictures.write_curves(figures, FOLDER.parent / "pictures")
    GUIDE.write_text(with_tables(GUIDE.read_text(encoding="utf-8"), figures), encoding="utf-8")


def with_tables(text: str, figures: dict[str, Any]) -> str:
    """The page with new tables after its marks ``<!-- curve NAME -->``."""
    for axis in (*RANGES, "workers"):
        before, mark, after = text.partition(f"<!-- curve {axis} -->\n")
        if mark:
            rest = re.sub(r"\A\n*(?:\|.*\n)*\n*", "", after)
            text = f"{before}{mark}\n{axis_table(axis, figures)}\n\n{rest}"
    return text


def axis_table(axis: str, figures: dict[str, Any]) -> str:
    if axis == "workers":
        return table(
            ["workers", "samples a second / those of 1 worker"],
            [[one["value"], one["ratio"]] for one in figures["workers"]["points"]],
        )
    by_place = {(one["workload"], one["layout"], one["value"]): one for one in figures[axis]}
    columns = [*CRITICAL, *COLUMNS.get(axis, [])]
    rows = [
        [value, *(of(by_place[name, layout, value]) for _, name, layout, of in columns)]
        for value in dict.fromkeys(one["value"] for one in figures[axis])
    ]
    return table([axis, *(title for title, *_ in columns)], rows)


def _share(key: str) -> Any:
    return lambda one: f"{one[key]:.1%}"


CRITICAL = [
    (f"{name}, {layout}", name, layout, lambda one: one["critical_ratio"]) for name in WORKLOADS for layout in LAYOUTS
]
PADDING = [(f"padding, {name}", name, "padded", _share("padding_ratio")) for name in WORKLOADS]
COLUMNS: dict[str, list[tuple[str, str, str, Any]]] = {
    "window": [
        *PADDING,
        ("longest wait, groups (chat, padded)", "chat", "padded", lambda one: one["max_delay"]),
        ("read before the first batch (chat)", "chat", "padded", lambda one: one["read_before_the_first_batch"]),
        ("window, MB (chat)", "chat", "padded", lambda one: f"{one['window_megabytes']:.1f}"),
    ],
    "budget": [
        *PADDING,
        ("over the budget, chat", "chat", "padded", _share("left_out")),
        ("over the budget, mixed", "mixed", "padded", _share("left_out")),
        ("steps (chat, packed)", "chat", "packed", lambda one: one["steps"]),
    ],
}


def page(figures: dict[str, Any]) -> str:
    """All tables, with the settings behind them."""
    stand = ", ".join(f"{name} {value:,}" for name, value in figures["stand"].items())
    workers = figures["workers"]
    parts = [
        f"Critical ratio where one setting is varied and the others stay at {stand}; {figures['samples_a_rank']:,} "
        "samples a rank of the seeded workloads. Samples over the budget are left out. [tuning.md](tuning.md) says "
        "what follows.",
        *(axis_table(axis, figures) for axis in RANGES),
        f"Emitted samples a second of one loader over {workers['samples']:,} chats through chat template and "
        f"tokenizer, medians of {workers['rounds']} rounds in turn, as ratios to one worker "
        f"({workers['points'][1]['samples_per_second']:,} samples a second here):",
        axis_table("workers", figures),
    ]
    return "\n\n".join(parts)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples-a-rank", type=int, default=10_000, help="lengths of the simulations")
    parser.add_argument("--samples", type=int, default=6_000, help="chats of the loader with workers")
    parser.add_argument("--rounds", type=int, default=5, help="of the loader with workers")
