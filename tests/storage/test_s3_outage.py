"""The server is killed in the middle of a shard: the run goes on when it comes back, and ends with words if not."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ranks_support import run_ranks
from s3_server import BUCKET, PATIENCE, S3Server
from storage_support import SAMPLE_BYTES, first_retry, loader, make_shard, nothing_fetches, read_until_the_server_dies

import odb_stream as odb
from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.shards.index import write_index
from odb_stream.shards.reader import build_index, read_samples

ROOT = f"s3://{BUCKET}"
SMALL = 64 * 1024
"""A read-ahead that keeps most of a shard on the server."""


@contextmanager
def killed_until_the_first_retry(server: S3Server) -> Iterator[None]:
    """Kill a server, and start it again, in a thread, as soon as a request is tried again; one must be by the end."""
    with first_retry() as retried:  # before the kill: a thread that reads ahead may notice at once, and says so once

        def act() -> None:
            if retried.wait(60):
                server.start()

        thread = threading.Thread(target=act)
        server.kill()
        thread.start()
        try:
            yield
            assert retried.is_set(), "nothing was tried again: the server was not needed after its death"
        finally:
            retried.set()
            thread.join(PATIENCE)


def test_a_stream_goes_on_when_the_server_is_back(mortal_s3: S3Server) -> None:
    data = random.Random(7).randbytes(30_000_000)
    options = mortal_s3.options(read_ahead=SMALL, retry_seconds=300)
    storage.write_atomic(f"{ROOT}/a.bin", data, options)
    with storage.open_stream(f"{ROOT}/a.bin", 10, options) as stream:
        start = stream.read(1_000_000)
        with killed_until_the_first_retry(mortal_s3):
            rest = stream.read()
    assert start + rest == data[10:]
    nothing_fetches()


def test_a_loader_goes_on_with_every_sample_once(mortal_s3: S3Server) -> None:
    options = mortal_s3.options(read_ahead=SMALL, retry_seconds=300)
    for shard in range(3):
        storage.write_atomic(f"{ROOT}/s-{shard}.tar", make_shard(shard * 100, 100, SAMPLE_BYTES), options)
    with loader(f"{ROOT}/s-*.tar", options) as stream:
        undisturbed = [odb.pop_step(batch).refs for batch in stream]
    assert sum(map(len, undisturbed)) == 300
    with loader(f"{ROOT}/s-*.tar", options) as stream:
        batches = iter(stream)
        steps = [odb.pop_step(next(batches)).refs]
        with killed_until_the_first_retry(mortal_s3):
            steps += [odb.pop_step(batch).refs for batch in batches]
        assert stream.report()["dropped"] == {}
    assert steps == undisturbed
    nothing_fetches()


def test_without_the_server_it_ends_within_the_limit_naming_the_address(mortal_s3: S3Server) -> None:
    options = mortal_s3.options(read_ahead=SMALL, retry_seconds=0.5)
    storage.write_atomic(f"{ROOT}/a.tar", make_shard(0, 300, SAMPLE_BYTES), options)
    samples = read_samples(f"{ROOT}/a.tar", options=options)
    assert next(samples).index == 0
    mortal_s3.kill()
    with pytest.raises(ShardError, match=r"s3://shards/a\.tar, byte offset \d+: .*tried \d+ times in \d+\.\d s"):
        list(samples)
    for request in (storage.size, storage.exists, storage.expand):
        with pytest.raises(ShardError, match=r"s3://shards/b\.tar cannot be read: no server answers there"):
            request(f"{ROOT}/b.tar", options=options)
    with pytest.raises(ShardError, match=r"s3://shards/b\.tar cannot be written: the server could not be reached"):
        storage.write_atomic(f"{ROOT}/b.tar", b"x", options)
    nothing_fetches()


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_without_the_server_every_rank_ends_naming_the_address(mortal_s3: S3Server, indexed: bool) -> None:
    options = mortal_s3.options(read_ahead=SMALL, retry_seconds=2)
    urls = [f"{ROOT}/s-{shard}.tar" for shard in range(2)]
    for shard, url in enumerate(urls):
        storage.write_atomic(url, make_shard(shard * 200, 200, SAMPLE_BYTES), options)
        if indexed:
            write_index(url, build_index(url, options), options)
    outcomes = run_ranks(read_until_the_server_dies, 2, urls, options, mortal_s3.pid, exits={0: 1, 1: 1})
    for outcome in outcomes:
        assert "s3://shards/s-" in outcome.output.split("Error after")[1], outcome.output
