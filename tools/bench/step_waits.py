"""How long a training loop waits for its next step: real processes on loopback, real Loaders, 20 ms per step.

    python tools/bench/step_waits.py

Prints one JSON object, the figures of the rank that waited most. ``alignment.py`` prints it too.
"""

import argparse
import json
import socket
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import torch.distributed as dist
from workloads import Integers

import odb_stream as odb

STEP_SECONDS = 0.02


def train(rank: int, ranks: int, port: int, samples: int) -> list[float]:
    """The loop of one rank: the milliseconds that it waited for each step."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    waits = []
    pipeline = odb.Pipeline(odb.FromDataset(Integers.of_size(samples)))
    with odb.Loader(pipeline, budget=odb.Budget(tokens=16_384), workers=1) as loader:
        steps = iter(loader)
        while True:
            asked = time.perf_counter()
            if next(steps, None) is None:
                break
            waits.append((time.perf_counter() - asked) * 1000)
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()
    return waits


def waiting(samples: int, ranks: int = 2) -> dict[str, float]:
    """How long the training loops waited for their steps: the figures of the slowest rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ProcessPoolExecutor(ranks, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(train, rank, ranks, port, samples) for rank in range(ranks)]
        waits = [run.result() for run in runs]
    later = [own[1:] for own in waits]
    return {
        "ranks": ranks,
        "steps": len(waits[0]),
        "ms_before_the_first_step": round(max(own[0] for own in waits), 1),
        "ms_a_later_step_mean": round(max(map(statistics.mean, later)), 3),
        "ms_a_later_step_median": round(max(map(statistics.median, later)), 3),
        "ms_a_later_step_most": round(max(map(max, later)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps(waiting(options.samples, options.ranks)))


if __name__ == "__main__":
    main()
