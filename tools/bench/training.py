"""Training on two CPU ranks with each way of making batches: emitted samples per second, and the resulting loss.

    python tools/bench training [--rounds 3] [--tokens 200000]

Four workloads shaped like those of the paper (arXiv 2606.19989) at an eighth of the length: at most 2,048 tokens per
sample, and a budget of 2,048 tokens per rank. A tiny, randomly initialised Qwen3 learns a random language. Compared are
torch's DataLoader with the largest fixed batch that never exceeds the budget, the published package, and this one,
padded and packed. Each round trains all of them in turn with a new seed; ratios are medians over the rounds.
"""

import argparse
import contextlib
import math
import multiprocessing
import os
import queue
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from results import median_ratio, table
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from workloads import VOCABULARY, AsTensors, Rows, pad

import odb_stream as odb

RANKS = 2
LONGEST = 2_048
SHAPE = {"width": 128, "inner": 256, "layers": 2, "heads": 4}
RATE = 3e-3
WORKERS = 1
PUBLISHED_WINDOW = 256
WORKLOADS = ("ultrachat-like", "llava-like", "sharegpt4o-like", "mmmix-like")
EXIT_SECONDS = 10
SILENT_SECONDS = 240
"""After this long without a result a run counts as failed."""


# One rank: an epoch of each workload with one way of making batches, timed and evaluated.


class Step(NamedTuple):
    """A batch, the factor of its loss, and the samples and tokens of all ranks in the step."""

    batch: dict[str, Any]
    scale: float
    samples: int
    tokens: int


def model_of(shape: dict[str, int], seed: int) -> torch.nn.Module:
    """A randomly initialised Qwen3."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.get("vocabulary", VOCABULARY), hidden_size=shape["width"], intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["heads"],
        head_dim=shape["width"] // shape["heads"], use_cache=False, tie_word_embeddings=True,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: torch.nn.Module = Qwen3ForCausalLM(config)
    return model.train()


def over_ranks(*values: int) -> list[int]:
    told = torch.tensor(values)
    dist.all_reduce(told)
    sums: list[int] = told.tolist()
    return sums


def fixed(job: dict[str, Any]) -> Iterator[Step]:
    """torch's DataLoader with batches of ``job["fixed"]`` samples; some samples come twice to fill the last batches."""
    rows: Any = Rows(job["lengths"])
    sampler: Any = DistributedSampler(rows, seed=job["seed"])
    loader: Any = DataLoader(rows, batch_size=job["fixed"], sampler=sampler, collate_fn=pad, num_workers=WORKERS)
    for batch in loader:
        samples, tokens = over_ranks(len(batch["input_ids"]), int(batch["attention_mask"].sum()))
        yield Step(batch, 1.0, samples, tokens)


def published(job: dict[str, Any]) -> Iterator[Step]:
    """The published package (``online-dynamic-batching``) as its pages show it: exact loss scaling, join mode.

    Its ranks may end at different steps, and a DDP loop would then wait forever. So an epoch ends for all ranks when it
    ends for one, and what the others still had does not count as emitted.
    """
    import odb

    rows: Any = AsTensors(Rows(job["lengths"]))
    loader = odb.ODBDataLoader(
        rows, token_budget=LONGEST, sampler=DistributedSampler(rows, seed=job["seed"]), batch_size=1,
        num_workers=WORKERS, prefetch_factor=PUBLISHED_WINDOW // WORKERS, collate_fn=pad,
        loss_scaling="exact", join=True,
    )  # fmt: skip
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if over_ranks(int(batch is not None))[0] < dist.get_world_size():
            return
        info = odb.pop_step_info(batch, loss_scaling="exact")
        samples, tokens = over_ranks(len(batch["input_ids"]), int(batch["attention_mask"].sum()))
        yield Step(batch, float(info.loss_scale), samples, tokens)


def ours(job: dict[str, Any]) -> Iterator[Step | None]:
    """This package at its default settings, in the layout named by the kind; None where the epoch begins."""
    pipeline = odb.Pipeline(odb.FromDataset(Rows(job["lengths"])))  # type: ignore[arg-type]
    budget = odb.Budget(tokens=LONGEST)
    with odb.Loader(pipeline, budget=budget, layout=job["kind"], workers=WORKERS, seed=job["seed"]) as loader:
        next(iter(loader))  # starts the workers, which does not count; this batch is not trained on
        yield None
        for batch in loader:
            step = odb.pop_step(batch)
            yield Step({"use_cache": False, **batch}, step.loss_scale, step.global_samples, step.global_tokens)


KINDS = {"fixed": fixed, "published": published, "padded": ours, "packed": ours}


def held_out_loss(model: torch.nn.Module, rows: Sequence[dict[str, Any]] | Rows, at_once: int = 8) -> float:
    """Mean loss a token on rows that no run trains on. The model has no dropout, so its mode does not matter."""
    total = tokens = 0.0
    with torch.no_grad():
        for start in range(0, len(rows), at_once):
            batch = pad([rows[place] for place in range(start, min(start + at_once, len(rows)))])
            count = int((batch["labels"][:, 1:] != -100).sum())
            total += float(model(**batch).loss) * count
            tokens += count
    return total / tokens


def epoch(job: dict[str, Any]) -> dict[str, Any]:
    """Train one epoch; figures of the step, the samples, the seconds, and the losses on held-out rows.

    Rule for the rate: ``RATE`` times the square root of the step's tokens over those of a step of fixed batches,
    warmed up over a twentieth of the samples, then falling linearly to a tenth.
    """
    inner = model_of(SHAPE, job["seed"])
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    every, seen, tokens, steps, at_equal_steps, paused = len(job["lengths"]), 0, 0, 0, None, 0.0
    held_out = Rows(job["held_out"], first=10**9)
    dist.barrier()
    started = time.perf_counter()
    for step in KINDS[job["kind"]](job):
        if step is None:
            dist.barrier()
            started = time.perf_counter()
            continue
        warm = min(1.0, (seen + step.samples) / (0.05 * every))
        factor = math.sqrt(step.tokens / job["reference_tokens"]) * warm * (1 - 0.9 * min(1.0, seen / every))
        optimizer.param_groups[0]["lr"] = RATE * factor
        (model(**step.batch).loss * step.scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen, tokens, steps = seen + step.samples, tokens + step.tokens, steps + 1
        if steps == job["equal_steps"]:
            before = time.perf_counter()
            at_equal_steps = held_out_loss(inner, held_out)
            dist.barrier()
            paused += time.perf_counter() - before
    dist.barrier()
    seconds = time.perf_counter() - started - paused
    return {
        "steps": steps, "emitted": seen, "tokens": tokens, "seconds": seconds,
        "loss": held_out_loss(inner, held_out), "loss_at_equal_steps": at_equal_steps,
    }  # fmt: skip


def live(rank: int, ranks: int, meet: str, jobs: list[dict[str, Any]], results: Any) -> None:
    """One rank: an epoch for each job."""
    os.setsid()  # a session of its own, so that whatever a loader leaves behind can be killed with the rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    for job in jobs:
        results.put((rank, job["name"], epoch(job)))
    dist.barrier()
    dist.destroy_process_group()


# All ranks, and what is kept of their figures.


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


def jobs(kind: str, options: argparse.Namespace, seed: int, equal_steps: dict[str, int]) -> list[dict[str, Any]]:
    """The jobs of every rank: one epoch of each workload."""
    told = []
    for name in WORKLOADS:
        lengths = lengths_of(name, options.tokens, 1)
        size = max(1, LONGEST // max(lengths))
        told.append({
            "name": name, "kind": kind, "lengths": lengths, "seed": seed,
            "held_out": lengths_of(name, options.tokens // 12, 2),
            "fixed": size, "reference_tokens": RANKS * size * sum(lengths) / len(lengths),
            "equal_steps": equal_steps.get(name, 0),
        })  # fmt: skip
    return told


def train(kind: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the jobs on two ranks; the figures of rank 0 by workload, without those that it did not finish."""
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
            print(f"{kind}: no result for {SILENT_SECONDS} s: this run failed", flush=True)
        for process in ranks:
            process.join(EXIT_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; losses at equal steps are those at nine tenths of the steps of the first packed epoch."""
    equal_steps: dict[str, int] = {}
    kinds = [kind for kind in ("packed", "padded", "published", "fixed") if kind != "published" or find_spec("odb")]
    told: dict[str, dict[str, list[dict[str, Any]]]] = {name: {kind: [] for kind in KINDS} for name in WORKLOADS}
    for number in range(options.rounds):
        for kind in kinds:
            for name, figures in trained(kind, jobs(kind, options, number, equal_steps)).items():
                told[name][kind].append(figures)
                if kind == "packed":
                    equal_steps.setdefault(name, round(0.9 * figures["steps"]))
                print(f"round {number}, {kind}, {name}: {figures}", flush=True)
    return {
        "ranks": RANKS,
        "budget": LONGEST,
        "rounds": options.rounds,
        "shape": SHAPE,
        "rate": RATE,
        "equal_steps": equal_steps,
        "workloads": {name: summary(name, kinds, options) for name, kinds in told.items()},
    }


def trained(kind: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all jobs, without epochs that emitted nothing: these count as failed."""
    # Each job of the published package gets new ranks, so that the processes it leaves behind end with them.
    parts = [[job] for job in told] if kind == "published" else [told]
    found = {name: figures for part in parts for name, figures in train(kind, part).items()}
    return {name: figures for name, figures in found.items() if figures["emitted"]}


def summary(name: str, kinds: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians and means over the rounds of one workload; None for a kind that failed in some round."""
    lengths = lengths_of(name, options.tokens, 1)
    rates = {
        kind: [one["emitted"] / one["seconds"] for one in rounds]
        for kind, rounds in kinds.items()
        if len(rounds) == options.rounds
    }

    def of(kind: str) -> dict[str, Any] | None:
        if kind not in rates:
            return None
        rounds = kinds[kind]
        at_equal_steps = [loss for one in rounds if (loss := one["loss_at_equal_steps"]) is not None]
        return {
            "samples_per_second": statistics.median(rates[kind]),
            "steps": rounds[0]["steps"],
            "emitted": rounds[0]["emitted"],
            "loss": statistics.fmean(one["loss"] for one in rounds),
            "loss_at_equal_steps": statistics.fmean(at_equal_steps) if at_equal_steps else None,
            "ratio_to": {peer: median_ratio(rates[kind], theirs) for peer, theirs in rates.items()},
        }

    return {
        "samples": len(lengths),
        "mean_length": round(sum(lengths) / len(lengths)),
        "fixed_batch": max(1, LONGEST // max(lengths)),
        "kinds": {kind: of(kind) for kind in kinds},
    }


def page(figures: dict[str, Any]) -> str:
    """Speed, and losses at equal samples and at equal steps; one line per workload."""
    speed, at_equal_samples, at_equal_steps = [], [], []
    for name, found in figures["workloads"].items():
        told = list(found["kinds"].values())
        shape = f"{name}, mean {found['mean_length']}, {found['samples']:,} samples, fixed {found['fixed_batch']}"
        ratios = [ratio(found, *pair) for pair in RATIOS]
        speed.append([shape, *(round(one["samples_per_second"]) if one else "failed" for one in told), *ratios])
        made = [f"{one['loss']:.3f} ({one['steps']:,}; {one['emitted']:,})" if one else "failed" for one in told]
        at_equal_samples.append([name, *made])
        losses = [one and one["loss_at_equal_steps"] for one in told]
        at_equal_steps.append([f"{name}, {figures['equal_steps'].get(name)} steps", *losses])
    kinds = list(KINDS)
    return "\n\n".join(
        [
            f"Two ranks, a budget of {figures['budget']:,} tokens a rank, {figures['rounds']} rounds. Emitted samples "
            "a second:",
            table(["workload", *kinds, *(f"{kind} / {peer}" for kind, peer in RATIOS)], speed),
            "Held-out loss after one epoch, that is at equal samples, with the steps that were made and the samples "
            "that came out; means over the rounds' seeds:",
            table(["workload", *(f"{kind} (steps; samples)" for kind in kinds)], at_equal_samples),
            "Held-out loss at equal steps:",
            table(["workload", *kinds], at_equal_steps),
        ]
    )


RATIOS = (("padded", "published"), ("packed", "published"), ("padded", "fixed"), ("packed", "fixed"))


def ratio(found: dict[str, Any], kind: str, peer: str) -> float | None:
    """How many times the emitted samples per second of a peer; None if either failed."""
    one = found["kinds"][kind]
    told: float | None = one["ratio_to"].get(peer) if one else None
    return told


def in_short(figures: dict[str, Any]) -> str:
    """Padded budgets compared with fixed batches and the published package, in a sentence."""
    found = figures["workloads"].values()

    def span(peer: str) -> str:
        ratios = [told for one in found if (told := ratio(one, "padded", peer)) is not None]
        return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "an unknown number of"

    return (
        f"Training a tiny Qwen3 on two CPU ranks, padded batches emit {span('fixed')} times the samples a second of "
        f"the largest fixed batch that keeps the budget, and {span('published')} times those of the published package, "
        f"over {len(found)} workloads."
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with a seed of its own")
    parser.add_argument("--tokens", type=int, default=200_000, help="tokens of an epoch of each workload")
