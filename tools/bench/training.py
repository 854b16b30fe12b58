"""Training on two CPU ranks with each way of making batches: emitted samples a second, and the loss that comes of it.

    python tools/bench training [--rounds 3] [--tokens 250000]

Four workloads shaped like those of the paper (arXiv 2606.19989), an eighth as long: at most 2,048 tokens a sample, a
budget of 2,048 tokens a rank. A tiny, randomly initialised Qwen3 learns a random language. Compared are torch's
DataLoader with the largest fixed batch that never exceeds the budget, the published package, and this one, padded and
packed. Every round trains each of them with another seed, in turn; ratios are medians over the rounds.
"""

import argparse
import contextlib
import multiprocessing
import os
import queue
import signal
import statistics
import tempfile
from typing import Any

import numpy as np
from results import table
from training_rank import KINDS, live

RANKS = 2
LONGEST = 2_048
SHAPE = {"width": 128, "inner": 256, "layers": 2, "heads": 4}
RATE = 3e-3
PUBLISHED_WINDOW = 256
WORKLOADS = ("ultrachat-like", "llava-like", "sharegpt4o-like", "mmmix-like")
EXIT_SECONDS = 10
SILENT_SECONDS = 240
"""A rank that says nothing for so long is given up, and its run is written down as failed."""


def lengths_of(name: str, tokens: int, seed: int, scale: int = 8) -> list[int]:
    """Seeded lengths of a workload that hold ``tokens`` in all; mean and variation as in the paper, over ``scale``."""
    draw = np.random.Generator(np.random.PCG64([seed, WORKLOADS.index(name)]))
    mean, variation = {"ultrachat-like": (1200, 0.48), "llava-like": (500, 0.29), "sharegpt4o-like": (2500, 1.0)}.get(
        name, (0, 0)
    )
    size = 4 * tokens * scale // 480
    if mean:
        sigma = np.sqrt(np.log1p(variation**2))
        drawn = draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    else:
        drawn = np.where(draw.random(size) < 0.75, draw.normal(180, 60, size), draw.lognormal(np.log(3500), 0.6, size))
    lengths = np.clip(drawn / scale, 2, 8 * LONGEST // scale).astype(int)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1].tolist()


def jobs(kind: str, options: argparse.Namespace, seed: int, fewest: dict[str, int]) -> list[dict[str, Any]]:
    """What a rank is told: one epoch of each workload."""
    told = []
    for name in WORKLOADS:
        lengths = lengths_of(name, options.tokens, 1)
        fixed = max(1, LONGEST // max(lengths))
        told.append({
            "name": name, "kind": kind, "lengths": lengths, "held_out": lengths_of(name, 20_000, 2), "seed": seed,
            "budget": LONGEST, "fixed": fixed, "workers": 1, "published_window": PUBLISHED_WINDOW, "shape": SHAPE,
            "rate": RATE, "reference_tokens": RANKS * fixed * sum(lengths) / len(lengths),
            "equal_steps": fewest.get(name, 0),
        })  # fmt: skip
    return told


def train(kind: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Two ranks through the jobs; what rank 0 says of each workload, or nothing where a rank fell silent."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = (RANKS, f"{folder}/meet", told, results)
        ranks = [context.Process(target=live, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        try:
            for _ in range(RANKS * len(told)):
                rank, name, figures = results.get(timeout=SILENT_SECONDS)
                if rank == 0:
                    found[name] = figures
        except queue.Empty:
            print(f"{kind}: no word for {SILENT_SECONDS} s; given up", flush=True)
        for process in ranks:
            process.join(EXIT_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the fewest steps of the first round are where losses at equal steps are taken."""
    fewest: dict[str, int] = {}
    told: dict[str, dict[str, list[dict[str, Any]]]] = {name: {kind: [] for kind in KINDS} for name in WORKLOADS}
    for number in range(options.rounds):
        for kind in ("packed", "padded", "published", "fixed"):
            told_of_it = jobs(kind, options, number, fewest)
            # What the published package leaves behind after an epoch is ended with its processes.
            parts = [[job] for job in told_of_it] if kind == "published" else [told_of_it]
            for name, figures in {k: v for part in parts for k, v in train(kind, part).items()}.items():
                told[name][kind].append(figures)
                if kind == "packed" and number == 0:
                    fewest[name] = round(0.9 * figures["steps"])
                print(f"round {number}, {kind}, {name}: {figures}", flush=True)
    return {
        "ranks": RANKS, "budget": LONGEST, "rounds": options.rounds, "shape": SHAPE, "rate": RATE,
        "equal_steps": fewest,
        "workloads": {name: summary(name, kinds, options) for name, kinds in told.items()},
    }  # fmt: skip


def summary(name: str, kinds: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians and means over the rounds of one workload."""
    lengths = lengths_of(name, options.tokens, 1)
    found: dict[str, Any] = {
        "samples": len(lengths),
        "mean_length": round(sum(lengths) / len(lengths)),
        "fixed_batch": max(1, LONGEST // max(lengths)),
    }  # fmt: skip
    rates = {kind: [one["emitted"] / one["seconds"] for one in rounds] for kind, rounds in kinds.items()}
    for kind, rounds in kinds.items():
        if not rounds:
            found[kind] = None
            continue
        at_equal = [
            one["loss_at_equal_steps"] for one in rounds if one["loss_at_equal_steps"] == one["loss_at_equal_steps"]
        ]
        found[kind] = {
            "samples_per_second": statistics.median(rates[kind]),
            "steps": rounds[0]["steps"],
            "emitted": rounds[0]["emitted"],
            "loss": statistics.fmean(one["loss"] for one in rounds),
            "loss_at_equal_steps": statistics.fmean(at_equal) if at_equal else None,
            "ratios_to_published": [a / b for a, b in zip(rates[kind], rates["published"], strict=False)],
            "ratios_to_fixed": [a / b for a, b in zip(rates[kind], rates["fixed"], strict=False)],
        }
    return found


def page(figures: dict[str, Any]) -> str:
    """Speed and losses, a workload a line."""
    kinds = list(KINDS)
    speed, losses = [], []
    for name, found in figures["workloads"].items():
        told = [found[kind] for kind in kinds]
        ratios = [statistics.median(found[kind]["ratios_to_published"]) if found["published"] and found[kind] else None
                  for kind in ("padded", "packed")]  # fmt: skip
        to_fixed = statistics.median(found["padded"]["ratios_to_fixed"])
        shape = f"{name}, mean {found['mean_length']}, {found['samples']:,} samples, fixed {found['fixed_batch']}"
        speed.append(
            [shape, *(round(one["samples_per_second"]) if one else "failed" for one in told), *ratios, to_fixed]
        )
        losses.append(
            [name]
            + [
                cell
                for one in told
                for cell in ((f"{one['steps']:,} / {one['emitted']:,}", one["loss"]) if one else ("failed", "-"))
            ]
            + [figures["equal_steps"].get(name)]
            + [one["loss_at_equal_steps"] if one else None for one in told]
        )
    return "\n\n".join([
        f"Two ranks, a budget of {figures['budget']:,} tokens a rank, {figures['rounds']} rounds. Emitted samples a "
        "second:",
        table(["workload", *kinds, "padded / published", "packed / published", "padded / fixed"], speed),
        "Held-out loss after one epoch (equal samples), with the steps that were made and the samples that came out, "
        "and after equal steps; means over the rounds' seeds:",
        table(
            ["workload", *(word for kind in kinds for word in (f"{kind}: steps / samples", "loss")), "equal steps",
             *(f"{kind}: loss" for kind in kinds)],
            losses,
        ),
    ])  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with a seed of its own")
    parser.add_argument("--tokens", type=int, default=250_000, help="tokens of an epoch of each workload")
