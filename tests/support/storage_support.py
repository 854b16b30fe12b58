"""What the storage tests share: small shards, and the end of the threads that fetch."""

import io
import random
import tarfile

from waiting import threads_end


def nothing_fetches() -> None:
    """Wait for the end of the threads of closed streams."""
    threads_end("odb_stream-fetch")


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
