"""Which rank reads what: shards, or parts of shards, dealt to ranks by pure integer rules.

If the number of samples in every shard is known, the samples, in the epoch's shard order, are cut into one contiguous
part for each rank. Parts differ by at most one sample. For shards of 5, 2 and 4 samples in the order 2, 0, 1 and three
ranks::

    order     2 2 2 2 0 0 0 0 0 1 1
    rank      0 0 0 1 1 1 1 2 2 2 2

Otherwise whole shards are dealt in turn. With fewer shards than ranks, every rank reads all of them and keeps every
R-th sample.

What remains of an epoch is cut the same way, by the remaining samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from odb_stream.config import World
from odb_stream.sample import Remaining
from odb_stream.seeds import SHARD_ORDER, of_source, permutation
from odb_stream.shards.ranges import count, cut
from odb_stream.sources.remaining import by_shard, samples_in
from odb_stream.sources.source import Segment


def shard_order(shards: int, *, seed: int, epoch: int, shuffle: bool, source: int = 0) -> list[int]:
    """The order of a source's shards in an epoch, the same on every rank."""
    if not shuffle:
        return list(range(shards))
    order: list[int] = permutation(shards, of_source(SHARD_ORDER, source), seed, epoch).tolist()
    return order


def assign(
    addresses: Sequence[str], world: World, *, order: Sequence[int], counts: Sequence[int] | None
) -> tuple[Segment, ...]:
    """What one rank reads, in order.

    ``order`` is a permutation of the shards' numbers; ``counts`` holds the samples of each shard by number, or is None
    if they are not known. The byte offset of a segment that starts inside a shard is left at 0, since only the shard's
    index knows it. Over all ranks, each sample belongs to exactly one segment.
    """
    if counts is None and len(addresses) >= world.size:
        return tuple(Segment(shard, addresses[shard]) for shard in order[world.rank :: world.size])
    if counts is None:
        return tuple(
            # The first sample goes to another rank in each shard, so that no rank gets all the odd ones.
            Segment(shard, addresses[shard], start=(world.rank - turn) % world.size, step=world.size)
            for turn, shard in enumerate(order)
        )
    first, last = (sum(counts) * rank // world.size for rank in (world.rank, world.rank + 1))
    segments = []
    begin = 0
    for shard in order:
        start, stop = max(first - begin, 0), min(last - begin, counts[shard])
        if start < stop:
            segments.append(Segment(shard, addresses[shard], start=start, stop=stop))
        begin += counts[shard]
    return tuple(segments)


def assign_remaining(
    addresses: Sequence[str],
    rows: Sequence[Remaining],
    world: World,
    *,
    order_of: Callable[[int], Sequence[int]],
    turn: int = 0,
) -> tuple[Segment, ...]:
    """What one rank reads of normalised rows of one source, in order: pass after pass.

    ``order_of`` gives the order of the shards in a pass; the odd samples go to the ranks from number ``turn`` on.
    """
    each, odd = divmod(samples_in(rows), world.size)
    place = (world.rank - turn) % world.size
    first = place * each + min(place, odd)
    last = first + each + (place < odd)
    orders = {epoch: order_of(epoch) for epoch in {row.epoch for row in rows}}
    places = {(epoch, shard): place for epoch, order in orders.items() for place, shard in enumerate(order)}
    segments = []
    begin = 0
    for epoch, shard, ranges in sorted(by_shard(rows), key=lambda one: (one[0], places[one[:2]])):
        if own := cut(ranges, first - begin, last - begin):
            part = Segment(shard, addresses[shard], start=own[0][0], stop=own[-1][1], keep=own, epoch=epoch)
            segments.append(replace(part, source=rows[0].source))
        begin += count(ranges)
    return tuple(segments)
