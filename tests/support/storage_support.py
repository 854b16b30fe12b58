"""What the storage tests share: small shards, and a look at the threads that fetch."""

import io
import random
import tarfile
import threading


def fetching_threads() -> list[threading.Thread]:
    """The threads of streams that are open."""
    return [thread for thread in threading.enumerate() if thread.name == "odb_stream-fetch"]


def nothing_fetches() -> None:
    """Wait for the end of the threads of closed streams."""
    for thread in fetching_threads():
        thread.join(60)
    assert not fetching_threads()


def make_shard(first: int, samples: int, size: int = 2_000) -> bytes:
    """A tar of samples ``first``, ``first + 1``, ..., each a KEY.txt of about ``size`` bytes that tells its number."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for number in range(first, first + samples):
            text = f"{number} " + random.Random(number).randbytes(size // 2).hex()
            info = tarfile.TarInfo(f"{number:06d}.txt")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()
