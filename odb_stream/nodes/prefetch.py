"""Prefetch: everything before it runs in one background thread; the training loop only takes finished batches.

``torchdata.nodes.Prefetcher`` has no public way to stop at once, so this node owns its thread and its channel.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torchdata.nodes import BaseNode

from odb_stream.nodes.collate import Batch
from odb_stream.runtime.channel import Channel, run_into
from odb_stream.runtime.waits import Waits

MOST_BATCHES = 16
"""Finished batches that wait for the training loop, at most; ``max_bytes`` bounds them too."""


class Prefetch(BaseNode[Batch]):
    """Yields the source's batches; errors of the source come out in their place in the order.

    ``at_end`` is called in the background thread when it stops, for whatever reason.
    """

    def __init__(
        self, source: BaseNode[Batch], *, max_bytes: int, waits: Waits, at_end: Callable[[], None]
    ) -> None:
        super().__init__()
        self._source = source
        self._at_end = at_end
        self._waits = waits
        self._channel: Channel[Batch] = Channel(most_items=MOST_BATCHES, most_bytes=max_bytes, waits=waits)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._channel.close)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self._source.reset(initial_state)
        arguments = (self._channel, self._source.__next__, size_in_bytes, self._at_end)
        self._thread = threading.Thread(target=run_into, args=arguments, name="odb_stream-prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        with self._waits.on("trainer"):
            return self._channel.take()

    def get_state(self) -> dict[str, Any]:
        return self._source.state_dict()

    def close(self) -> None:
        """Stop at once; what is finished and not taken is let go."""
        self._channel.close()

    def join(self, seconds: float) -> None:
        """Wait for the background thread to end after :meth:`close`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)


def size_in_bytes(batch: Batch) -> int:
    """Bytes of the tensors of a batch."""
    return sum(value.nbytes for value in batch.values() if torch.is_tensor(value))
