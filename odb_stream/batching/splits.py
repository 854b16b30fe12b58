"""Splitting the largest groups of a last round, so that every rank has one at every step. Pure; alike on every rank."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.groups import Counts, Integers, count, table

Item = TypeVar("Item")
Parts = dict[tuple[int, int], list[tuple[int, ...]]]
"""For each group that is split, by (rank, place in the rank's list): the places of its samples in each part."""


def missing_groups(counts: Sequence[int]) -> int:
    """How many groups a last round lacks to give every rank one at every step."""
    return -sum(counts) % len(counts)


def split_candidates(costs: Sequence[Integers], samples: Sequence[Integers]) -> list[tuple[int, int]]:
    """(rank, place) of the groups that a last round may have to split: the largest that hold two samples or more.

    No more than are missing, since each split adds a group. Their samples' sizes must be made known to all ranks.
    """
    splittable = [
        (-cost, -number, rank, place)
        for rank, (own_costs, own_samples) in enumerate(zip(costs, samples, strict=True))
        for place, (cost, number) in enumerate(zip(own_costs.tolist(), own_samples.tolist(), strict=True))
        if number > 1
    ]
    missing = missing_groups([len(own) for own in costs])
    return [(rank, place) for *_, rank, place in sorted(splittable)[:missing]]


def split_groups(candidates: dict[tuple[int, int], tuple[Size, ...]], missing: int, footprint: Footprint) -> Parts:
    """Split the largest group by (footprint, samples), again and again, until ``missing`` groups were gained.

    Fewer are gained only when every part is a single sample.
    """
    heap = [_entry(key, tuple(range(len(sizes))), sizes, footprint) for key, sizes in candidates.items()]
    heapify(heap)
    parts: Parts = {}
    while heap and missing:
        _, _, key, places = heappop(heap)
        if len(places) == 1:
            continue
        sizes = candidates[key]
        siblings = parts.setdefault(key, [places])
        siblings.remove(places)
        for half in halve([sizes[place] for place in places], footprint):
            part = tuple(places[place] for place in half)
            siblings.append(part)
            heappush(heap, _entry(key, part, sizes, footprint))
        missing -= 1
    return parts


def _entry(
    key: tuple[int, int], places: tuple[int, ...], sizes: tuple[Size, ...], footprint: Footprint
) -> tuple[int, int, tuple[int, int], tuple[int, ...]]:
    """A part's place in the order of splitting: the largest footprint first, then the most samples."""
    cost = count(tuple(sizes[place] for place in places), footprint).padded_tokens
    return -cost, -len(places), key, places


def halve(sizes: Sequence[Size], footprint: Footprint) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two parts of a group of at least two samples, as places, such that the larger footprint is small.

    Padded: the best cut of the samples sorted by length. Packed: longest first, each to the emptier part.
    """
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place].length, place))
    if footprint.layout == "padded":
        widths = [footprint.rounded(sizes[place].length) for place in order]
        cut = min(range(1, len(order)), key=lambda n: max(n * widths[0], (len(order) - n) * widths[n]))
        return tuple(sorted(order[:cut])), tuple(sorted(order[cut:]))
    halves: tuple[list[int], list[int]] = ([], [])
    totals = [0, 0]
    for place in order:
        emptier = 0 if totals[0] <= totals[1] else 1
        halves[emptier].append(place)
        totals[emptier] += sizes[place].length
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))


def replaced(
    groups: Sequence[Item], rank: int, parts: Parts, cut: Callable[[int, tuple[int, ...]], Item]
) -> list[Item]:
    """A rank's groups with those that are split replaced by ``cut(place, part)`` for each of their parts."""
    return [
        item
        for place, group in enumerate(groups)
        for item in ([cut(place, part) for part in parts[rank, place]] if (rank, place) in parts else [group])
    ]


def split_counts(
    own: Integers, rank: int, parts: Parts, sizes: dict[tuple[int, int], tuple[Size, ...]], footprint: Footprint
) -> Integers:
    """A rank's table of counts after the splits; ``sizes`` are those of the samples of the groups that are split."""
    counts = replaced(
        [Counts(*row) for row in own.tolist()],
        rank,
        parts,
        lambda place, part: count(tuple(sizes[rank, place][i] for i in part), footprint),
    )
    return table(counts, len(counts), len(Counts._fields))
