"""What the storage tests share: small shards, retries, and all that an error says."""

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from make_tars import tar_bytes
from waiting import threads_end


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
