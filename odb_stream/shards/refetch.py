"""Samples that were read before, read again by their places: many at once, and each as if it were the only one."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple, TypeVar

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.shards.coalescing import go_to, spans_together, stretches
from odb_stream.shards.index import ShardIndex, stale
from odb_stream.shards.ranges import Spans, spans_of
from odb_stream.shards.tar import raising
from odb_stream.shards.tar.byte_cursor import Tape
from odb_stream.shards.tar.faults import Fault
from odb_stream.shards.tar.grouping import Grouping, Item, LostSample, TarSample
from odb_stream.shards.tar.walk import walk
from odb_stream.storage.options import DEFAULT, Storage

MOST_THREADS = 8
"""Stretches that are read at once: each may hold ``Storage.read_ahead`` bytes."""

Items = Generator[Item, None, None]
Work = TypeVar("Work")
Result = TypeVar("Result")


class Place(NamedTuple):
    """Where a sample of a shard starts: its first byte, and its number."""

    offset: int
    number: int


def read_again(
    places: Mapping[str, Sequence[Place]],
    *,
    index_of: Callable[[str], ShardIndex | None],
    read_indexed: Callable[[str, Spans, ShardIndex], Items],
    options: Storage = DEFAULT,
) -> dict[tuple[str, int], TarSample]:
    """The samples at these places of each shard, by address and byte offset; places ascend, and none comes twice.

    ``index_of`` gives a shard's index, if it has one; ``read_indexed`` reads near spans of it. Up to ``MOST_THREADS``
    stretches are read at once. Raises ShardError, with the place, where no sample starts, or one that was lost.
    """
    indexes = at_once(index_of, list(places))
    tasks = [
        (address, items)
        for (address, wanted), index in zip(places.items(), indexes, strict=True)
        for items in (
            [read_places(address, near, options) for near in places_together(wanted)]
            if index is None
            else [read_indexed(address, near, index) for near in _near_spans(address, wanted, index)]
        )
    ]
    found = at_once(lambda task: _whole(task[1]), tasks)
    return {
        (address, sample.offset): sample
        for (address, _), samples in zip(tasks, found, strict=True)
        for sample in samples
    }


def places_together(places: Iterable[Place]) -> list[list[Place]]:
    """Places in stretches. Without an index nobody knows how long samples are: those in between count as the mean."""

    def gap(one: Place, other: Place) -> float:
        steps = max(1, other.number - one.number)
        return (other.offset - one.offset) * (steps - 1) / steps

    return stretches(places, gap)


def read_places(address: str, places: Sequence[Place], options: Storage = DEFAULT) -> Items:
    """The samples that start at these places, from one stream; what lies between them does not matter.

    Of what comes after a sample nothing is looked at but the next header. Raises ShardError where no sample starts.
    """
    with storage.open_stream(address, places[0].offset, options) as stream:
        tape = Tape(storage.log_name(address), stream, places[0].offset)
        for place, after in zip(places, [*places[1:], None], strict=True):
            # Where the next one starts this one has ended: its header must stay on the tape.
            go_to(tape, place.offset, None if after is None else after.offset)
            with closing(Grouping(tape, place.number, raising(address)).items(walk(tape, to_end=False))) as items:
                sample = next(items, None)
            if not isinstance(sample, TarSample) or sample.offset != place.offset:
                what = f"no sample starts here (sample {place.number})"
                fault = Fault("damaged_tar", place.offset, what, "the shard was changed since")
                raise ShardError(fault.text(tape.name))
            yield sample


def at_once(work: Callable[[Work], Result], items: Sequence[Work]) -> list[Result]:
    """What the work gives for each item, in order, done by up to ``MOST_THREADS`` threads.

    Raises what the first of them raises.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(MOST_THREADS, len(items)), thread_name_prefix="odb_stream-again")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _near_spans(address: str, places: Sequence[Place], index: ShardIndex) -> list[Spans]:
    for offset, number in places:
        if not (0 <= number < index.samples and index.offsets[number] == offset):
            raise stale(address, f"it knows no sample {number} at byte offset {offset}")
    return spans_together(spans_of(place.number for place in places), index)


def _whole(items: Items) -> list[TarSample]:
    """All of these samples. Raises ShardError for one that was lost."""
    with closing(items):
        return [_kept(item) for item in items]


def _kept(item: Item) -> TarSample:
    if isinstance(item, LostSample):
        raise ShardError(item.drop.detail)
    return item
