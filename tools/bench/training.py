"""Training with token budgets beside fixed batches: samples a second, and the loss at equal samples and equal steps.

    python tools/bench_training.py speed --lengths LENGTHS.npy
    python tools/bench_training.py quality --chats CHATS.jsonl

``speed`` trains a tiny Qwen3 on two ranks over samples of the given lengths, scaled to at most 2,048 tokens, with fixed
batches of 8 a rank (torch's DataLoader and DistributedSampler) and with padded and packed budgets, and prints emitted
samples a second of each and the ratio to fixed batches; the rounds alternate. ``quality`` trains on real chats in one
process, over several seeds, with rules for the learning rate, and prints the loss on held-out chats at equal samples
and at equal steps: mean and standard error, and the difference from fixed batches in percent.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import odb_stream as odb
from odb_stream import stages
from odb_stream.shardio.writer import read_jsonl

DEMO = Path(__file__).resolve().parents[1] / "shards" / "demo"
VOCABULARY = 4096
MOST_TOKENS = 2048


def model_of(width: int, layers: int, seed: int) -> Any:
    """A randomly initialised Qwen3."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, head_dim=32, use_cache=False,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).train()


class Rows:
    """Random tokens of given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.random.Generator(np.random.PCG64(index)).integers(1, VOCABULARY, self.lengths[index])}


def pad(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The padding collate that everybody writes."""
    width = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros((len(items), width), dtype=torch.int64)
    labels = torch.full((len(items), width), -100, dtype=torch.int64)
    mask = torch.zeros((len(items), width), dtype=torch.int64)
    for row, item in enumerate(items):
        length = len(item["input_ids"])
        ids[row, :length] = torch.as_tensor(np.asarray(item["input_ids"]))
        labels[row, :length] = torch.as_tensor(np.asarray(item.get("labels", item["input_ids"])))
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def batches(kind: str, rows: Rows, rank: int, ranks: int, budget: int) -> Iterator[tuple[dict[str, Any], float, int]]:
    """Batches of an epoch, with the loss scale and the samples of all ranks."""
    if kind == "fixed":
        sampler = DistributedSampler(rows, ranks, rank, seed=1)  # type: ignore[arg-type, var-annotated]
        for batch in DataLoader(rows, batch_size=8, sampler=sampler, collate_fn=pad):  # type: ignore[arg-type]
            yield batch, 1.0, len(batch["input_ids"]) * ranks
        return
    with odb.Loader(odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(budget), layout=kind, window=256) as loader:  # type: ignore[arg-type]
        for batch in loader:
            step = odb.pop_step(batch)
            yield {"use_cache": False, **batch}, step.loss_scale, step.global_samples


def train_rank(rank: int, ranks: int, meet: str, options: dict[str, Any], results: Any) -> None:
    """Rank's life: alternating rounds of one epoch of each kind."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(model_of(options["width"], options["layers"], 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(options["rounds"]):
        for kind in options["kinds"]:
            dist.barrier()
            started, samples, steps = time.perf_counter(), 0, 0
            for batch, scale, emitted in batches(kind, Rows(options["lengths"]), rank, ranks, options["budget"]):
                (model(**batch).loss * scale).backward()
                optimizer.step()
                optimizer.zero_grad()
                samples += emitted
                steps += 1
            dist.barrier()
            results.put((rank, kind, min(samples, len(options["lengths"])) / (time.perf_counter() - started), steps))
    dist.destroy_process_group()


def speed(options: argparse.Namespace) -> None:
    lengths = np.load(options.lengths)
    scaled = np.maximum(2, lengths * (MOST_TOKENS / lengths.max())).astype(int)[: options.samples].tolist()
    settings = {
        "lengths": scaled, "width": options.width, "layers": options.layers, "rounds": options.rounds,
        "budget": options.budget, "kinds": ["fixed", "padded", "packed"],
    }  # fmt: skip
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=train_rank, args=(rank, 2, f"{folder}/meet", settings, results)) for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        told = [results.get() for _ in range(2 * options.rounds * 3)]
        for rank in ranks:
            rank.join()
    rates = {k: [rate for rank, kind, rate, _ in told if kind == k and rank == 0] for k in settings["kinds"]}
    steps = {kind: count for _, kind, _, count in told}
    fixed = statistics.median(rates["fixed"])
    figures = {
        "samples": len(scaled),
        "mean_length": statistics.fmean(scaled),
        **{f"{kind}_samples_per_second": statistics.median(of) for kind, of in rates.items()},
        **{f"{kind}_ratio": statistics.median(of) / fixed for kind, of in rates.items()},
        "steps": steps,
    }
    print(json.dumps(figures))


def tokenized(path: str) -> list[dict[str, Any]]:
    """Chats with labels on the assistant's turns."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "tokenizer")
    chats = [content for _, content in read_jsonl(path)]
    pipeline = odb.Pipeline(
        odb.FromDataset(chats, shuffle=False),
        stages.ChatTemplate(tokenizer),
        stages.Tokenize(tokenizer, max_length=256),
    )
    prepare, reading = pipeline.prepare(0), pipeline.source.open().reading(odb.World(), seed=0, epoch=0)
    made = [prepare.record(record) for record in reading.records()]
    return [{"input_ids": s.input_ids, "labels": s.labels} for s in made if not isinstance(s, odb.Drop)]


def held_out_loss(model: Any, rows: list[dict[str, Any]]) -> float:
    model.eval()
    total = tokens = 0.0
    with torch.no_grad():
        for start in range(0, len(rows), 16):
            batch = pad(rows[start : start + 16])
            count = int((batch["labels"][:, 1:] != -100).sum())
            total += float(model(**batch).loss) * count
            tokens += count
    model.train()
    return total / tokens


def run(
    kind: str, rule: str, train: list[dict[str, Any]], test: list[dict[str, Any]], options: Any, seed: int
) -> tuple[float, float, int]:
    """One run over the samples: loss at the end, loss after ``equal_steps`` updates (or at the end), updates."""
    model = model_of(64, 2, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    reference = options.batch * statistics.fmean(int((row["labels"][1:] != -100).sum()) for row in train)
    updates, at_equal, seen, every = 0, math.nan, 0, len(train) * options.epochs
    while seen < every:
        for batch, tokens, samples in updates_of(kind, train, options, seed + updates):
            factor = {"same": 1.0, "sqrt": math.sqrt(tokens / reference), "linear": tokens / reference}[rule]
            warm = min(1.0, (updates + 1) / 20)
            optimizer.param_groups[0]["lr"] = options.rate * factor * warm * (1 - 0.9 * seen / every)
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            seen += samples
            if updates == options.equal_steps:
                at_equal = held_out_loss(model, test)
    return held_out_loss(model, test), at_equal, updates


def updates_of(
    kind: str, rows: list[dict[str, Any]], options: argparse.Namespace, seed: int
) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Batches of an epoch with their supervised tokens and samples."""
    if kind == "fixed":
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows)).tolist()
        for start in range(0, len(rows), options.batch):
            batch = pad([rows[place] for place in order[start : start + options.batch]])
            yield batch, int((batch["labels"][:, 1:] != -100).sum()), len(batch["input_ids"])
        return
    layout, window = kind.split("-") if "-" in kind else (kind, "1024")
    with odb.Loader(
        odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(options.budget), layout=layout,  # type: ignore[arg-type]
        window=int(window), seed=seed,
    ) as loader:  # fmt: skip
        for batch in loader:
            step = odb.pop_step(batch)
            yield {"use_cache": False, **batch}, step.global_supervised_tokens, step.samples


def quality(options: argparse.Namespace) -> None:
    rows = tokenized(options.chats)
    test, train = rows[:: options.hold_out], [row for n, row in enumerate(rows) if n % options.hold_out]
    torch.set_num_threads(options.threads)
    found: dict[str, tuple[list[float], list[float], int]] = {}
    for kind in options.kinds.split(","):
        for rule in ("same",) if kind == "fixed" else options.rules.split(","):
            runs = [run(kind, rule, train, test, options, seed) for seed in range(options.seeds)]
            found[f"{kind} {rule}"] = ([r[0] for r in runs], [r[1] for r in runs], runs[0][2])
            base = found["fixed same"]
            losses, equal, updates = found[f"{kind} {rule}"]
            print(json.dumps({
                "batches": kind, "rule": rule, "updates": updates,
                "loss_at_equal_samples": statistics.fmean(losses),
                "standard_error": statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None,
                "percent_of_fixed": 100 * (statistics.fmean(losses) / statistics.fmean(base[0]) - 1),
                "loss_at_equal_steps": statistics.fmean(equal),
                "percent_of_fixed_at_equal_steps": 100 * (statistics.fmean(equal) / statistics.fmean(base[1]) - 1),
            }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    fast = commands.add_parser("speed")
    fast.add_argument("--lengths", required=True)
    fast.add_argument("--samples", type=int, default=600)
    fast.add_argument("--rounds", type=int, default=3)
    fast.add_argument("--width", type=int, default=256)
    fast.add_argument("--layers", type=int, default=4)
    fast.add_argument("--budget", type=int, default=4096)
    fast.set_defaults(command=speed)
    good = commands.add_parser("quality")
    good.add_argument("--chats", required=True)
    good.add_argument("--seeds", type=int, default=5)
    good.add_argument("--epochs", type=int, default=1)
    good.add_argument("--batch", type=int, default=9)
    good.add_argument("--budget", type=int, default=2048)
    good.add_argument("--rate", type=float, default=3e-3)
    good.add_argument("--hold-out", type=int, default=6, help="every so many-th chat is held out")
    good.add_argument("--equal-steps", type=int, default=70)
    good.add_argument("--kinds", default="fixed,padded,padded-256,packed")
    good.add_argument("--rules", default="same,sqrt,linear")
    good.add_argument("--threads", type=int, default=1)
    good.set_defaults(command=quality)
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    sys.exit(main())
