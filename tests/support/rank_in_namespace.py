"""One rank of test_transport_failures.py, run in a network namespace: RANK SIZE ADDRESS PORT TIMEOUT."""

import json
import sys

import numpy as np
import torch.distributed as dist

from odb_stream.config import World
from odb_stream.errors import PeerError
from odb_stream.ranks.gloo import Gloo


def main(rank: int, size: int, address: str, port: int, timeout: float) -> None:
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    transport = Gloo(World(rank, size), timeout=timeout)
    transport.gather(np.arange(1))
    transport.exchange({(rank + 1) % size: np.zeros(1000, np.uint8)}, [(rank - 1) % size])
    print("ready", flush=True)
    if rank == size - 1:
        sys.stdin.readline()
    try:
        transport.gather(np.arange(1))
    except PeerError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
    transport.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
