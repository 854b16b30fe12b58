"""Batch quality of every policy on arrays of lengths: steps, critical ratio, groups over the budget, what is measured.

    python tools/bench quality [--lengths FOLDER] [--ranks 1 8 64]

The seeded arrays of ``workloads.py``, and those of a folder if it exists, are dealt to 1, 8 and 64 ranks. Everything
is a function of the lengths, so the figures are the same on every machine.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results import table
from workloads import ARRAYS, SAMPLES, SEEDED, arrays, workload

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import Figures, deal, measure, simulate
from odb_stream.config import Budget

BUDGET = 16_384
FIXED = 8
LHOTSE_BUFFERS = (2_048, 20_000)
BUCKETS = 10
"""Of lhotse's sampler: its default."""
FEW = 5_000
"""Arrays with fewer samples make epochs of a few steps with 8 ranks."""


@dataclass(frozen=True)
class Policy:
    """One line of the comparison: how to run it, and which samples of an epoch each rank must measure."""

    name: str
    run: Callable[[list[int], int], Figures]
    measured: str


def ours(lengths: list[int], ranks: int, *, layout: Any = "padded", policy: Any = "anchored", **given: int) -> Figures:
    """A policy that ``simulate`` knows."""
    footprint = Footprint(layout, Budget(BUDGET))
    return simulate(deal(lengths, ranks), policy=policy, footprint=footprint, batch_size=FIXED, **given)


def lhotse(lengths: list[int], ranks: int, *, buffer: int) -> Figures:
    """lhotse's dynamic bucketing sampler with this buffer."""
    schedule = lhotse_schedule(lengths, ranks, BUDGET, buffer)
    footprint = Footprint("padded", Budget(BUDGET))
    return measure(schedule, footprint, policy="lhotse", ranks=ranks, window=buffer, dropped=0, max_delay=0)


@dataclass
class Sized:
    """A sample, with the attribute that lhotse's token constraint reads."""

    num_tokens: int


def lhotse_missing() -> str | None:
    """Why lhotse is left out, or None if it is installed."""
    return None if find_spec("lhotse") else 'lhotse is not installed: pip install "odb-stream[bench]"'


def lhotse_schedule(lengths: list[int], ranks: int, tokens: int, buffer: int) -> list[list[list[int]]]:
    """Steps of lhotse's dynamic bucketing: its own sampler, run once per rank as in a job of that size.

    Each sampler reads all lengths, forms the batches of all ranks and keeps its own. ``buffer`` is how many samples it
    holds; the other settings are its defaults (10 buckets from the first 10,000 lengths).
    """
    from lhotse.dataset.sampling.base import TokenConstraint
    from lhotse.dataset.sampling.dynamic_bucketing import DynamicBucketingSampler

    def batches(rank: int) -> list[list[int]]:
        sampler: Any = DynamicBucketingSampler(
            Samples(lengths), constraint=TokenConstraint(max_tokens=tokens), num_buckets=BUCKETS, buffer_size=buffer,
            shuffle=True, drop_last=False, world_size=ranks, rank=rank, seed=0,
        )  # fmt: skip
        return [[sample.num_tokens for sample in batch] for batch in sampler]

    return [list(step) for step in zip(*map(batches, range(ranks)), strict=True)]


class Samples:
    """Lengths as a source that can be read repeatedly."""

    is_lazy = True

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Any:
        return (Sized(length) for length in self.lengths)


ITS_SHARE, ALL, ALL_BEFORE = "its share", "all, on every rank", "all, before the first batch"


def policies() -> Iterator[Policy]:
    """What is compared; lhotse only if it is installed."""
    yield Policy(f"fixed {FIXED}", partial(ours, policy="fixed"), ITS_SHARE)
    yield Policy("gmt", partial(ours, policy="gmt"), ALL_BEFORE)
    yield Policy("bmt", partial(ours, policy="bmt"), ALL_BEFORE)
    yield Policy("paper-window 256", partial(ours, policy="paper-window", window=256, lookahead=256), ITS_SHARE)
    if lhotse_missing() is None:
        for buffer in LHOTSE_BUFFERS:
            yield Policy(f"lhotse {buffer:,}", partial(lhotse, buffer=buffer), ALL)
    yield Policy("anchored 256", partial(ours, window=256, lookahead=32), ITS_SHARE)
    yield Policy("anchored (default)", ours, ITS_SHARE)
    yield Policy("packed (default)", partial(ours, layout="packed"), ITS_SHARE)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of all arrays, rank counts and policies."""
    found = {**{name: workload(name, options.samples) for name in SEEDED}, **arrays(options.lengths)}
    skipped = [] if len(found) > len(SEEDED) else [f"there is no folder of arrays at --lengths: {options.lengths.name}"]
    if (reason := lhotse_missing()) or max(options.ranks) > options.most_lhotse_ranks:
        skipped.append(reason or f"lhotse above {options.most_lhotse_ranks} ranks, whose samplers would run for hours")
    rows = []
    for name, lengths in found.items():
        for ranks in options.ranks:
            for policy in policies():
                if policy.name.startswith("lhotse") and ranks > options.most_lhotse_ranks:
                    continue
                figures = policy.run(lengths, ranks)
                rows.append(row(name, policy, ranks, figures, len(lengths)))
                print(f"{name}, {ranks} ranks, {policy.name}: {figures.critical_ratio:.4f}", flush=True)
    return {"budget": BUDGET, "skipped": skipped, "rows": rows}


def row(name: str, policy: Policy, ranks: int, figures: Figures, samples: int) -> dict[str, Any]:
    return {
        "array": name,
        "samples": samples,
        "ranks": ranks,
        "policy": policy.name,
        "steps": figures.steps,
        "critical_ratio": round(figures.critical_ratio, 4),
        "padding_ratio": round(figures.padding_ratio, 4),
        "over_budget_groups": figures.over_budget_groups,
        "emitted": figures.emitted,
        "measured": policy.measured,
    }


def page(figures: dict[str, Any]) -> str:
    """The tables: critical ratios for each number of ranks, and the rest for 8 ranks."""
    rows = figures["rows"]
    names = list(dict.fromkeys(one["policy"] for one in rows))
    samples = {one["array"]: one["samples"] for one in rows}
    order = list(samples)
    by_place = {(one["array"], one["ranks"], one["policy"]): one for one in rows}
    parts = [f"Critical ratio, a budget of {figures['budget']:,} tokens; 1 is ideal. {BOUND}"]
    for ranks in sorted({one["ranks"] for one in rows}):
        told = [
            [f"{array} ({samples[array]:,})"]
            + [(by_place.get((array, ranks, name)) or {}).get("critical_ratio") for name in names]
            for array in order
        ]
        shown = [place for place, name in enumerate(names) if any(line[place + 1] is not None for line in told)]
        header = [f"{ranks} rank{'s' if ranks > 1 else ''}: array (samples)", *(names[place] for place in shown)]
        parts.append(table(header, [[line[0], *(line[place + 1] for place in shown)] for line in told]))
    parts.append(
        "Steps of an epoch / groups over the budget with 8 ranks, and the samples that each rank must measure:"
    )
    told = [
        [name, *(count_of(by_place.get((array, 8, name))) for array in order), by_place[order[0], 8, name]["measured"]]
        for name in names
    ]
    parts.append(table(["policy", *order, "a rank measures"], told))
    return "\n\n".join([*parts, *(f"Left out: {reason}." for reason in figures["skipped"])])


BOUND = (
    "`fixed`, `gmt`, `bmt`, `paper-window` and `lhotse` are padded. `gmt` and `bmt` know all lengths beforehand; "
    "`lhotse` holds the number of samples in its name on every rank, and its bound is soft: see the groups over it."
)


def count_of(one: dict[str, Any] | None) -> str:
    """Steps and groups over the budget in one cell."""
    return "-" if one is None else f"{one['steps']:,} / {one['over_budget_groups']:,}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", type=Path, default=ARRAYS, help="folder of .npy arrays of token counts")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each seeded array")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument(
        "--most-lhotse-ranks", type=int, default=8, help="its sampler runs once a rank, which takes long"
    )
