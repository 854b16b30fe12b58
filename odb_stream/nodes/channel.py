"""A bounded hand-over from one background thread to the training loop, which either side can end at once."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from odb_stream.nodes.waits import Waits

T = TypeVar("T")


class Channel(Generic[T]):
    """Items pass in order; at most ``most_items`` and about ``most_bytes`` wait inside (always at least one item).

    An item counts as taken when the consumer takes it, not when the training loop is done with it.
    """

    def __init__(self, *, most_items: int, most_bytes: int, waits: Waits) -> None:
        self._waits = waits
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T, size: int) -> bool:
        """Hand an item over, waiting for room; False when the channel was closed and the item is not wanted."""
        with self._changed:
            with self._waits.on("room"):
                self._changed.wait_for(lambda: self._closed or self._has_room(size))
            if self._closed:
                return False
            self._items.append((item, size))
            self._bytes += size
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """No item will follow; the consumer gets ``error``, or the end, after what is still inside."""
        with self._changed:
            self._ended = True
            if not self._closed:
                self._error = error
            self._changed.notify_all()

    def take(self) -> T:
        """The next item, waiting for it.

        Raises:
            StopIteration: the stream has ended, or the channel was closed.
            BaseException: what the producer ended with; again at each further call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items) or self._ended)
            if self._closed:
                raise StopIteration
            if self._items:
                item, size = self._items.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    @property
    def wanted(self) -> bool:
        """Whether the consumer is still there and nothing has gone wrong."""
        return not self._closed and not self._ended

    def close(self) -> None:
        """End both sides at once; what is inside is let go. May be called again, from any thread."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None  # its traceback refers to everything that was running
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        if not self._items:
            return True
        return len(self._items) < self._most_items and self._bytes + size <= self._most_bytes


def run_into(
    channel: Channel[T], produce: Callable[[], T], size: Callable[[T], int], at_end: Callable[[], None]
) -> None:
    """Feed a channel from ``produce`` until it raises or the channel is closed; the body of the background thread.

    Whatever is raised here, the consumer must see it: a thread has nobody else to tell.
    """
    try:
        while True:
            item = produce()
            if not channel.put(item, size(item)):
                return
    except StopIteration:
        channel.end()
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
        channel.end(error)
    finally:
        at_end()
