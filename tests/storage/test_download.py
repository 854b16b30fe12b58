"""The buffer between the thread that fetches and the one that reads."""

import threading

import pytest

from odb_stream.errors import ShardError
from odb_stream.storage.access import StoreError
from odb_stream.storage.download import Buffer, FetchedStream


def test_the_fetcher_waits_for_room() -> None:
    buffer = Buffer(100)
    put: list[int] = []
    full = threading.Event()

    def fetch() -> None:
        for number in range(20):
            if number == 4:
                full.set()
            if not buffer.put(bytes([number]) * 30):
                return
            put.append(number)
        buffer.end(None)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert full.wait(60)
    assert put == [0, 1, 2, 3]  # 90 bytes are less than 100, 120 are not
    assert b"".join(iter(buffer.take, b"")) == b"".join(bytes([number]) * 30 for number in range(20))
    thread.join(60)
    assert put == list(range(20))


def test_closing_frees_the_fetcher() -> None:
    buffer = Buffer(1)
    results: list[bool] = []
    first_is_in = threading.Event()

    def fetch() -> None:
        results.append(buffer.put(b"xx"))
        first_is_in.set()
        results.append(buffer.put(b"yy"))

    thread = threading.Thread(target=fetch)
    thread.start()
    assert first_is_in.wait(60)
    buffer.close()
    thread.join(60)
    assert results == [True, False]
    assert buffer.closed_within(1000) is True
    assert buffer.take() == b""


def test_an_error_comes_after_the_bytes_and_stays() -> None:
    buffer = Buffer(100)
    buffer.open()
    buffer.put(b"abc")
    buffer.end(StoreError("the connection broke"))
    stream = FetchedStream(buffer, "s3://b/k", 1000)
    assert stream.read(10) == b"abc"
    for _ in range(2):
        with pytest.raises(ShardError, match="s3://b/k, byte offset 1003: the connection broke"):
            stream.read(10)
    stream.close()


def test_the_end_and_an_error_before_the_first_answer() -> None:
    ended, failed = Buffer(100), Buffer(100)
    ended.put(b"abc")
    ended.end(None)
    ended.wait_open()
    assert (ended.take(), ended.take(), ended.take()) == (b"abc", b"", b"")
    failed.end(StoreError("no"))
    with pytest.raises(StoreError, match="no"):
        failed.wait_open()
