"""What ranks and worker processes run in the storage tests."""

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import odb_stream as odb
from odb_stream.errors import OdbStreamError
from odb_stream.storage.options import Storage

SAMPLE_BYTES = 100_000


def numbered(sample: Any) -> dict[str, Any]:
    """A stage: the number at the start of the text becomes tokens."""
    number = int(sample["text"].partition(" ")[0])
    return {"input_ids": np.full(3 + number % 5, number + 1, np.int32)}


def loader(urls: Any, options: Storage, **settings: Any) -> odb.Loader:
    """A loader that reads no further ahead than it must, so that most is unread when the first batch is there."""
    settings = {"budget": odb.Budget(tokens=16), "window": 4, "lookahead": 2, **settings}
    return odb.Loader(odb.Pipeline(odb.Shards(urls, shuffle=False, storage=options), numbered), **settings)


def read_until_the_server_dies(urls: list[str], options: Storage, server: int) -> None:
    """A rank's training script: rank 0 kills the server after the first step, and any error ends the program."""
    import torch.distributed as dist

    started = time.monotonic()
    try:
        with loader(urls, options) as stream:
            for step, _ in enumerate(stream):
                if step == 0 and dist.get_rank() == 0:
                    os.kill(server, signal.SIGKILL)
    except OdbStreamError as error:
        print(f"{type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error
