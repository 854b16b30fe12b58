"""A training script as users start it under torchrun: ``train_script.py FOLDER``.

Each rank writes the numbers that it saw to FOLDER. What is heavy is imported in ``main``, because the worker processes
import this module too.
"""

import json
import os
import sys
from pathlib import Path


def main(folder: str) -> None:
    import torch
    import torch.distributed as dist
    from ranks_training import two_epochs_with_workers

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(two_epochs_with_workers()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
