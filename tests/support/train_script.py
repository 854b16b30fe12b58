"""A training script as users start it: ``train_script.py FOLDER`` under torchrun, or with a start method for two ranks.

Two epochs with worker processes. Each rank writes the numbers that it saw to FOLDER. What is heavy is imported in
``main``, for the worker processes import this module too.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

from ranks_data import same


def main(folder: str, start: dict[str, object]) -> None:
    """The life of a rank; ``start`` are arguments for ``init_process_group``, if any."""
    import torch
    import torch.distributed as dist
    from ranks_training import Case, numbers_of

    import odb_stream as odb

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", **start)
    with Case((120, 40)).loader(same, workers=2) as stream:
        epochs = [[n for b in stream if odb.pop_step(b).samples for n in numbers_of(b)] for _ in range(2)]
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(epochs))
    dist.destroy_process_group()


def start_ranks(folder: str, method: str) -> int:
    """Start two ranks and return the largest exit code."""
    import torch.distributed  # noqa: F401 - so that a fork has it already

    context = multiprocessing.get_context(method)
    starts = [{"init_method": f"file://{folder}/rendezvous", "rank": rank, "world_size": 2} for rank in range(2)]
    ranks = [context.Process(target=main, args=(folder, start)) for start in starts]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return max(abs(rank.exitcode or 0) for rank in ranks)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(start_ranks(*sys.argv[1:]))
    main(sys.argv[1], {})
