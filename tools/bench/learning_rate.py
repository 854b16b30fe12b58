"""Which learning rate fits batches of uneven size: held-out loss on real chats, at equal samples and at equal steps.

    python tools/bench/learning_rate.py --chats CHATS.jsonl

Trains in one process, over several seeds, with fixed batches and with budgets, under three rules for the rate of a
step: the same, scaled by the ratio of its supervised tokens to those of a fixed batch, or scaled by the square root of
that ratio. Prints mean and standard error, and the difference from fixed batches in percent.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from loading import TOKENIZER
from training import held_out_loss, model_of
from transformers import AutoTokenizer
from workloads import pad

import odb_stream as odb
from odb_stream import stages
from odb_stream.prepare.records import prepare_for
from odb_stream.shards.writer import read_jsonl

SHAPE = {"vocabulary": 4096, "width": 64, "inner": 128, "layers": 2, "heads": 2}


def tokenized(path: str) -> list[dict[str, Any]]:
    """Chats with labels on the assistant's turns."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    chats = [content for _, content in read_jsonl(path)]
    pipeline = odb.Pipeline(
        odb.FromDataset(chats, shuffle=False),
        stages.ChatTemplate(tokenizer),
        stages.Tokenize(tokenizer, max_length=256),
    )
    prepare, reading = prepare_for(pipeline, 0), pipeline.source.open().reading(odb.World(), seed=0, epoch=0)
    made = [prepare.record(record) for record in reading.records()]
    return [{"input_ids": s.input_ids, "labels": s.labels} for s in made if not isinstance(s, odb.Drop)]


def run(
    kind: str, rule: str, train: list[dict[str, Any]], test: list[dict[str, Any]], options: Any, seed: int
) -> tuple[float, float, int]:
    """One run over the samples: loss at the end, loss after ``equal_steps`` updates (or at the end), updates."""
    model: Any = model_of(SHAPE, seed)
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
                at_equal = held_out_loss(model, test, at_once=16)
    return held_out_loss(model, test, at_once=16), at_equal, updates


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


def compare(options: argparse.Namespace) -> None:
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
    parser.add_argument("--chats", required=True, help="a file with one sample a line")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=9)
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--hold-out", type=int, default=6, help="every so many-th chat is held out")
    parser.add_argument("--equal-steps", type=int, default=70)
    parser.add_argument("--kinds", default="fixed,padded,padded-256,packed")
    parser.add_argument("--rules", default="same,sqrt,linear")
    parser.add_argument("--threads", type=int, default=1)
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
