"""A thread that runs blocking calls for another thread, which so stays free to look around and to give up."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Jobs:
    """Runs jobs one after the other in a daemon thread, until ``finish``."""

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._inbox,), name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Queue a job. One submitted after ``finish`` never runs."""
        future: Future[T] = Future()
        self._inbox.put((job, future))
        return future

    def finish(self, last: Callable[[], None]) -> "Future[None]":
        """Queue the last job; the thread ends after it."""
        future = self.submit(last)
        self._inbox.put(None)
        return future

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, for a while."""
        self._thread.join(seconds)


def _work(inbox: "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]") -> None:
    while (item := inbox.get()) is not None:
        job, future = item
        try:
            result = job()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked, which raises it
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        # The thread must keep nothing alive while it waits for the next job.
        del item, job, future
