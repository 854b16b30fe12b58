"""Prefetch: everything before it runs in one background thread; the training loop only takes finished batches.

``torchdata.nodes.Prefetcher`` has no public way to stop at once, so this node owns its thread and its channel.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torchdata.nodes import BaseNode

from odb_stream.nodes.channel import Channel, run_into
from odb_stream.nodes.collate import Finished
from odb_stream.nodes.waits import Waits


class Prefetch(BaseNode[Finished]):
    """Yields the source's batches; errors of the source come out in their place in the order.

    Args:
        source: runs in the background thread from :meth:`start` on.
        channel: what the finished batches wait in.
        at_end: called in the background thread when it stops, for whatever reason.
        after: a thread that must have ended before this one begins: the epoch before, which may still have to tell
            other ranks that it was left.
    """

    def __init__(
        self,
        source: BaseNode[Finished],
        *,
        channel: Channel[Finished],
        waits: Waits,
        at_end: Callable[[], None],
        after: threading.Thread | None,
    ) -> None:
        super().__init__()
        self._source = source
        self._waits = waits
        self._channel = channel
        self.thread = threading.Thread(
            target=_work, args=(channel, source, at_end, after), name="odb_stream-prefetch", daemon=True
        )
        weakref.finalize(self, channel.close)

    def start(self) -> None:
        """Begin to fill the channel."""
        self.thread.start()

    def next(self) -> Finished:
        with self._waits.on("trainer"):
            return self._channel.take()

    def get_state(self) -> dict[str, Any]:
        return self._source.state_dict()

    def close(self) -> None:
        """Stop at once; what is finished and not taken is let go."""
        self._channel.close()


def _work(
    channel: Channel[Finished],
    source: BaseNode[Finished],
    at_end: Callable[[], None],
    after: threading.Thread | None,
) -> None:
    """The body of the background thread; it holds no reference to the node, so that a forgotten one is collected."""
    if after is not None:
        after.join()
    run_into(channel, source.__next__, size_in_bytes, at_end)


def size_in_bytes(finished: Finished) -> int:
    """Bytes of the tensors of a batch."""
    return sum(value.nbytes for value in finished.batch.values() if torch.is_tensor(value))
