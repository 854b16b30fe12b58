"""What resuming costs: the state at every step, and the first batch after a load deep inside an epoch.

    python tools/bench/resume.py

Part 1 takes the state after each step of a loader (window 256, packed, 16,384 tokens) and prints the mean and the
largest time, the size of the state, and the cost of states in the background. Part 2 writes 200,000 indexed chats in
200 shards, runs 90 % of the epoch, and prints the seconds from building a loader to its first batch: of a fresh run,
and after loading the state.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from loading import write_chats
from workloads import Integers

import odb_stream as odb
from odb_stream.checkpoint.state import RoundState
from odb_stream.nodes import align

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pipelines"))

import text_chat


def short_rows(size: int) -> Integers:
    """Samples of 20 to 2,000 tokens, most of them short."""
    lengths = np.random.Generator(np.random.PCG64(5)).lognormal(5.5, 0.8, size).clip(20, 2000).astype(int)
    return Integers(lengths.tolist())


def time_states(samples: int) -> dict[str, float]:
    """Milliseconds of ``state_dict`` at every step, and of a round's background work over its steps."""
    spent: list[float] = []
    encode = align.encode

    def timed(state: RoundState, kind: type) -> Any:
        started = time.perf_counter()
        made = encode(state, kind)
        spent.append(time.perf_counter() - started)
        return made

    align.encode = timed
    seconds, sizes = [], []
    pipeline = odb.Pipeline(odb.FromDataset(short_rows(samples)))
    with odb.Loader(pipeline, budget=odb.Budget(tokens=16_384), layout="packed", window=256) as loader:
        for _ in loader:
            started = time.perf_counter()
            state = loader.state_dict()
            seconds.append(time.perf_counter() - started)
            sizes.append(len(json.dumps(state)))
    align.encode = encode
    return {
        "steps": len(seconds),
        "state_dict_mean_ms": 1e3 * statistics.fmean(seconds),
        "state_dict_median_ms": 1e3 * statistics.median(seconds),
        "state_dict_max_ms": 1e3 * max(seconds),
        "background_ms_per_step": 1e3 * sum(spent) / len(seconds),
        "share_of_a_100_ms_step": (sum(spent) + sum(seconds)) / len(seconds) / 0.1,
        "largest_state_characters": max(sizes),
    }


def loader(urls: str, workers: int) -> odb.Loader:
    return odb.Loader(text_chat.build(urls), budget=odb.Budget(tokens=16_384), layout="packed", workers=workers)


def first_batch(urls: str, workers: int, state: dict[str, Any] | None) -> float:
    """Seconds from building a loader to its first batch."""
    started = time.perf_counter()
    with loader(urls, workers) as stream:
        if state is not None:
            stream.load_state_dict(state)
        next(iter(stream))
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(time_states(min(options.samples, 60_000))))
    with tempfile.TemporaryDirectory() as folder:
        shards = max(1, options.samples // 1000)
        write_chats(Path(folder), options.samples, words=(3, 60), shards=shards)
        urls = f"{folder}/*.tar"
        state: dict[str, Any] = {}
        with loader(urls, options.workers) as stream:
            for batch in stream:
                if odb.pop_step(batch).samples_seen >= 0.9 * options.samples:
                    state = stream.state_dict()
                    break
        pairs = [
            (first_batch(urls, options.workers, None), first_batch(urls, options.workers, state))
            for _ in range(options.repeats)
        ]
        fresh, resumed = (statistics.median(times) for times in zip(*pairs, strict=True))
        figures = {
            "first_batch_from_start_s": fresh,
            "first_batch_at_90_percent_s": resumed,
            "ratio": resumed / fresh,
            "median_of_paired_ratios": statistics.median(late / early for early, late in pairs),
            "state_step": state["step"],
            "state_characters": len(json.dumps(state)),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
