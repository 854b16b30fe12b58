"""Which rank reads what: shards, or parts of shards, dealt to ranks by pure integer rules.

With the number of samples in every shard, the samples of the epoch's shard order are cut into one contiguous part for
each rank; parts differ by at most one sample. For shards of 5, 2 and 4 samples in the order 2, 0, 1 and three ranks::

    order     2 2 2 2 0 0 0 0 0 1 1
    rank      0 0 0 1 1 1 1 2 2 2 2

Without those numbers whole shards are dealt in turn. Where there are fewer shards than ranks, every rank reads all of
them and keeps each R-th sample.
"""

from collections.abc import Sequence

from odb_stream.config import World
from odb_stream.seeds import SHARD_ORDER, permutation
from odb_stream.shardio.source import Segment


def shard_order(shards: int, *, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """The order of the shards in an epoch, the same on every rank."""
    return permutation(shards, SHARD_ORDER, seed, epoch).tolist() if shuffle else list(range(shards))


def assign(
    addresses: Sequence[str], world: World, *, order: Sequence[int], counts: Sequence[int] | None
) -> tuple[Segment, ...]:
    """What one rank reads, in order.

    ``order`` is a permutation of the shards' numbers; ``counts`` are the samples of each shard (by number), or None
    where they are not known. The byte offset of a segment that starts inside a shard is left at 0: only the shard's
    index knows it. Over all ranks each sample belongs to exactly one segment.
    """
    if counts is not None:
        return _split_samples(addresses, world, order, counts)
    if len(addresses) >= world.size:
        return tuple(Segment(shard, addresses[shard]) for shard in order[world.rank :: world.size])
    return tuple(
        # The first sample falls to the next rank in each shard, so that no rank gets all the odd ones.
        Segment(shard, addresses[shard], start=(world.rank - turn) % world.size, step=world.size)
        for turn, shard in enumerate(order)
    )


def _split_samples(
    addresses: Sequence[str], world: World, order: Sequence[int], counts: Sequence[int]
) -> tuple[Segment, ...]:
    total = sum(counts)
    first, last = (total * rank // world.size for rank in (world.rank, world.rank + 1))
    segments = []
    begin = 0
    for shard in order:
        start, stop = max(first - begin, 0), min(last - begin, counts[shard])
        if start < stop:
            segments.append(Segment(shard, addresses[shard], start=start, stop=stop))
        begin += counts[shard]
    return tuple(segments)
