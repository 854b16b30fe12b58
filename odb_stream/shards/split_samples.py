"""Samples whose members lie apart in a damaged shard: neither half is handed on as if it were a sample."""

from collections.abc import Iterable, Iterator

from odb_stream.errors import ShardError
from odb_stream.shards.tar.grouping import Item, LostSample, TarSample

HELD_BACK = 256
"""Samples that wait before they are handed on, so that a second part of one of their keys is seen in time."""


def lose_split_samples(items: Iterable[Item]) -> Iterator[Item]:
    """The samples of a shard, with both halves of a split one lost.

    A key that returns with members that it already had loses its second sample only: the first was whole. A key that
    returns with other members loses both, since they are two halves. Raises ShardError where more than ``HELD_BACK``
    samples lie between the halves: the first was handed on by then.
    """
    held: dict[int, Item] = {}
    whole: dict[str, tuple[int, frozenset[str]]] = {}
    # Most samples of a shard have the same extensions: one set of them is kept, not one for each key.
    shared: dict[frozenset[str], frozenset[str]] = {}
    for item in items:
        if isinstance(item, TarSample):
            extensions = frozenset(item.members)
            whole[item.key] = item.index, shared.setdefault(extensions, extensions)
        elif item.drop.reason == "repeated_key" and item.found.key in whole:
            number, extensions = whole.pop(item.found.key)
            if extensions.isdisjoint(item.found.members):
                if number not in held:
                    raise ShardError(
                        f"{item.drop.detail}. Its first members were already handed on as sample {number}: no setting "
                        "can drop a sample that is spread over a shard like this"
                    )
                first = held[number]
                held[number] = LostSample(first, item.drop) if isinstance(first, TarSample) else first
        held[item.index] = item
        if len(held) > HELD_BACK:
            yield held.pop(next(iter(held)))
    yield from held.values()
