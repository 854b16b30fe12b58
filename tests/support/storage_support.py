"""What the storage tests share: small shards, retries, all that an error says, and what their ranks run."""

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from make_tars import tar_bytes
from waiting import threads_end

import odb_stream as odb
from odb_stream.errors import OdbStreamError
from odb_stream.storage.options import Storage

SAMPLE_BYTES = 100_000


def nothing_fetches() -> None:
    """Wait for the end of the threads of closed streams."""
    threads_end("odb_stream-fetch")


def make_shard(first: int, samples: int, size: int = 2_000) -> bytes:
    """A tar of samples ``first``, ``first + 1``, ..., each a KEY.txt of about ``size`` bytes that tells its number."""
    numbers = range(first, first + samples)
    texts = [f"{number} " + random.Random(number).randbytes(size // 2).hex() for number in numbers]
    return tar_bytes((f"{number:06d}.txt", text.encode()) for number, text in zip(numbers, texts, strict=True))


def everything_said(error: BaseException) -> str:
    """What an error says, with its whole chain of causes and contexts, shown or not, and their arguments."""
    chain: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one not in chain:
            chain.append(one)
            todo += [one.__cause__, one.__context__]
    return "".join(f"{one!s} {one!r} {one.args!r} {one.__dict__!r}" for one in chain)


@contextmanager
def first_retry() -> Iterator[threading.Event]:
    """An event that is set when a request is tried again within the block."""
    retrying = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "trying again" in record.getMessage():
                retrying.set()

    logger, watch = logging.getLogger("odb_stream.storage.retries"), Watch()
    logger.addHandler(watch)
    try:
        yield retrying
    finally:
        logger.removeHandler(watch)


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
