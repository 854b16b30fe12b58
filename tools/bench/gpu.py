"""The training comparison on a CUDA device: a Qwen3 of half a billion parameters or more, bf16, random initialisation.

    python tools/bench gpu [--parameters 0.5|1.7] [--budget 16384] [--steps 30]

One device, one process, the four workloads at full length (at most 16,384 tokens). Compared are the largest fixed batch
size that never exceeds the budget, padded batches, and packed batches, with a variable-length attention kernel if
flash-attn is installed. Measured are real tokens and samples per second after a warm-up, and the peak memory. Without a
CUDA device it says so and measures nothing; ``--device cpu --parameters tiny`` tries the script itself.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from results import table
from training import WORKLOADS, lengths_of, model_of
from workloads import Rows, pad

import odb_stream as odb

SHAPES = {
    "tiny": {"width": 64, "inner": 128, "layers": 2, "heads": 2, "vocabulary": 512},
    "0.5": {"width": 1024, "inner": 3072, "layers": 20, "heads": 16, "vocabulary": 151_936},
    "1.7": {"width": 2048, "inner": 6144, "layers": 28, "heads": 16, "vocabulary": 151_936},
}
KINDS = ("fixed", "padded", "packed")
WARM_UP = 5
ROUNDS = 2


def batches(kind: str, lengths: list[int], budget: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Endless batches of one kind, each with its number of samples and of real tokens."""
    rows: Any = Rows(lengths)
    if kind == "fixed":
        size = max(1, budget // max(lengths))
        while True:
            for start in range(0, len(lengths), size):
                part = range(start, min(start + size, len(lengths)))
                yield pad([rows[place] for place in part]), len(part), sum(lengths[place] for place in part)
    with odb.Loader(odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(tokens=budget), layout=kind) as loader:  # type: ignore[arg-type]
        while True:
            for batch in loader:
                step = odb.pop_step(batch)
                yield {"use_cache": False, **batch}, step.samples, step.tokens


def speed(kind: str, model: Any, lengths: list[int], options: argparse.Namespace) -> dict[str, float]:
    """Real tokens and samples per second of one kind of batches, and the peak memory."""
    on_device = options.device == "cuda"
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    started, samples, tokens = 0.0, 0, 0
    made = batches(kind, lengths, options.budget)
    for number in range(WARM_UP + options.steps):
        batch, its_samples, its_tokens = next(made)
        if number == WARM_UP:
            if on_device:
                torch.cuda.synchronize()  # kernels of the warm-up may still be running
            started = time.perf_counter()
        moved = {name: value.to(options.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        model(**moved).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= WARM_UP:
            samples, tokens = samples + its_samples, tokens + its_tokens
    if on_device:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    made.close()  # type: ignore[attr-defined]
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_device else 0.0
    return {"samples_per_second": samples / seconds, "tokens_per_second": tokens / seconds, "peak_gib": peak}


def run(options: argparse.Namespace) -> dict[str, Any] | None:
    """All workloads; None if there is no such device."""
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu: no CUDA device here, nothing was measured")
        return None
    kernel = "flash_attention_2" if options.device == "cuda" and find_spec("flash_attn") else "sdpa"
    model: Any = model_of(SHAPES[options.parameters], 0).to(device=options.device, dtype=torch.bfloat16)
    model.set_attn_implementation(kernel)
    model.gradient_checkpointing_enable()
    found: dict[str, Any] = {}
    for name in WORKLOADS:
        lengths = lengths_of(name, options.tokens, 1, scale=options.scale)
        rounds = [{kind: speed(kind, model, lengths, options) for kind in KINDS} for _ in range(ROUNDS)]
        found[name] = {
            kind: {key: statistics.median(one[kind][key] for one in rounds) for key in rounds[0][kind]}
            for kind in KINDS
        }
        print(name, found[name], flush=True)
    return {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU, to try the script",
        "attention": kernel,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "budget": options.budget,
        "steps": options.steps,
        "workloads": found,
    }


def page(figures: dict[str, Any]) -> str:
    rows = []
    for name, kinds in figures["workloads"].items():
        rates = [kinds[kind]["samples_per_second"] for kind in KINDS]
        peaks = [kinds[kind]["peak_gib"] for kind in KINDS]
        rows.append([name, *rates, rates[1] / rates[0], rates[2] / rates[0], *peaks])
    intro = (
        f"{figures['device']}, {figures['parameters'] / 1e9:.1f} billion parameters in bf16, {figures['attention']}, "
        f"a budget of {figures['budget']:,} tokens. Samples a second, and the most memory taken:"
    )
    header = ["workload", *KINDS, "padded / fixed", "packed / fixed", *(f"{kind} GiB" for kind in KINDS)]
    return f"{intro}\n\n{table(header, rows)}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parameters", choices=SHAPES, default="0.5", help="billions, about")
    parser.add_argument("--budget", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="tokens of the lengths that are drawn")
    parser.add_argument("--scale", type=int, default=1, help="lengths are divided by it")
