"""Loader throughput beside a plain DataLoader: the same samples, two workers, in one run.

    python tools/bench_loader.py

Prints samples a second of both and their ratio, the median of several alternating rounds. 12,000 samples of 300 to 700
integers. Each round is one epoch, started cold (worker start-up is not counted: the first epoch warms both up).
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
from torch.utils.data import DataLoader

import odb_stream as odb


class Integers:
    """``size`` samples of 300 to 700 integers, made on access."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lengths = np.random.Generator(np.random.PCG64(11)).integers(300, 701, size)
        self.tokens = np.arange(700, dtype=np.int64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens[: self.lengths[index]]}


def pad(items: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """The padding collate that a plain DataLoader needs."""
    width = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros((len(items), width), dtype=torch.int64)
    labels = torch.full((len(items), width), -100, dtype=torch.int64)
    mask = torch.zeros((len(items), width), dtype=torch.int64)
    for row, item in enumerate(items):
        tokens = torch.from_numpy(item["input_ids"])
        ids[row, : len(tokens)] = tokens
        labels[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def samples_a_second(stream, expected: int) -> float:
    """Rows of one epoch over its seconds."""
    started = time.perf_counter()
    rows = sum(batch["input_ids"].shape[0] for batch in stream)
    seconds = time.perf_counter() - started
    assert rows == expected, f"{rows} samples came out, {expected} went in"
    return expected / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    dataset = Integers(options.samples)
    plain = DataLoader(
        dataset, batch_size=16, num_workers=options.workers, shuffle=True, collate_fn=pad, persistent_workers=True
    )
    pipeline = odb.Pipeline(odb.FromDataset(dataset))
    with odb.Loader(pipeline, budget=odb.Budget(tokens=16_384), workers=options.workers) as loader:
        ours, theirs = [], []
        for round_number in range(options.rounds + 1):
            figures = (samples_a_second(loader, len(dataset)), samples_a_second(plain, len(dataset)))
            if round_number:
                ours.append(figures[0])
                theirs.append(figures[1])
    result = {
        "odb_stream_samples_per_second": round(statistics.median(ours)),
        "dataloader_samples_per_second": round(statistics.median(theirs)),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
