"""Prefetch: everything before it runs in one background thread; the training loop only takes finished batches.

``torchdata.nodes.Prefetcher`` has no public way to stop at once, so the thread and its channel are our own.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import torch

from odb_stream.nodes.collate import Finished
from odb_stream.nodes.waits import Waits


class Channel:
    """A bounded hand-over of batches from a background thread to the training loop, which either side can end at once.

    At most ``most_items`` and about ``most_bytes`` wait inside, but there is always room for one batch. A batch counts
    as taken when the consumer takes it, not when the training loop is done with it.
    """

    def __init__(self, *, most_items: int, most_bytes: int, waits: Waits) -> None:
        self._waits = waits
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._items: deque[tuple[Finished, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, finished: Finished) -> bool:
        """Hand over a batch, waiting for room; False if the channel is closed."""
        size = sum(value.nbytes for value in finished.batch.values() if torch.is_tensor(value))
        with self._changed:
            with self._waits.on("room"):
                self._changed.wait_for(lambda: self._closed or self._has_room(size))
            if self._closed:
                return False
            self._items.append((finished, size))
            self._bytes += size
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """No batch will follow. The consumer gets ``error``, or the end, after the batches that are still inside."""
        with self._changed:
            self._ended = True
            if not self._closed:
                self._error = error
            self._changed.notify_all()

    def take(self) -> Finished:
        """The next batch, waiting for it.

        Raises:
            StopIteration: the stream has ended, or the channel was closed.
            BaseException: what the producer ended with; again at each further call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items) or self._ended)
            if self._closed:
                raise StopIteration
            if self._items:
                finished, size = self._items.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return finished
            if self._error is not None:
                raise self._error
            raise StopIteration

    @property
    def wanted(self) -> bool:
        """Whether the consumer is still there and nothing has gone wrong."""
        return not self._closed and not self._ended

    def close(self) -> None:
        """End both sides at once and drop the batches inside. May be called again, from any thread."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None  # its traceback refers to everything that was running
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        if not self._items:
            return True
        return len(self._items) < self._most_items and self._bytes + size <= self._most_bytes


class Prefetch(Iterator[Finished]):
    """A plain iterator of the source's batches; errors of the source come out at their place in the order.

    Args:
        source: runs in the background thread, which starts at once.
        channel: where finished batches wait.
        at_end: called in the background thread when it stops, for whatever reason.
        after: a thread that must end before this one begins: that of the epoch before, which may still have to tell
            other ranks that its loop left.
    """

    def __init__(
        self,
        source: Iterator[Finished],
        *,
        channel: Channel,
        waits: Waits,
        at_end: Callable[[], None],
        after: threading.Thread | None,
    ) -> None:
        self._waits = waits
        self._channel = channel
        # The thread gets no reference to this object, so that a forgotten iterator is collected and ends it.
        self.thread = threading.Thread(
            target=_fill, args=(channel, source, at_end, after), name="odb_stream-prefetch", daemon=True
        )
        weakref.finalize(self, channel.close)
        self.thread.start()

    def __next__(self) -> Finished:
        with self._waits.on("trainer"):
            return self._channel.take()

    def close(self) -> None:
        """Stop at once; finished batches that were not taken are dropped."""
        self._channel.close()


def _fill(
    channel: Channel, source: Iterator[Finished], at_end: Callable[[], None], after: threading.Thread | None
) -> None:
    """The background thread: feed the channel until the source ends or fails, or the channel is closed."""
    if after is not None:
        after.join()
    try:
        for finished in source:
            if not channel.put(finished):
                return
        channel.end()
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it: a thread has no caller
        channel.end(error)
    finally:
        at_end()
