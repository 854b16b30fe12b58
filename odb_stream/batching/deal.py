"""What all ranks decide alike from the costs of their groups: how many steps, who emits what, in which order.

Every function here is pure and takes integers that all ranks know, so it gives the same answer on every rank. The
*deal* of a round says for each step and rank which group is emitted: its owner, and its place in the owner's list. In
the last round the largest groups are split first, so that every rank has one at every step. A *burst* is a run of steps
whose images are decoded together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeVar

import numpy as np

from odb_stream.batching.cost import BYTES, IMAGES, Counts, Footprint, Integers, Size, count, table
from odb_stream.seeds import STEP_ORDER, permutation

IDLE = -1
"""Owner of an empty place in a deal: the rank idles there."""

BURST_SHARE = 4
"""A burst takes at most this part of ``max_bytes``: one is being decoded, one is started, others wait to be taken."""

Item = TypeVar("Item")
Parts = dict[tuple[int, int], list[tuple[int, ...]]]
"""For each group that is split, by (rank, place in the rank's list): the places of its samples in each part."""


@dataclass(frozen=True)
class Deal:
    """Who emits what in a round: ``owner`` and ``place`` of shape (steps, ranks), owner ``IDLE`` where a rank has none.

    A group that a rank planned and the deal does not name stays with that rank for the next round.
    """

    owner: Integers
    place: Integers

    def moves(self) -> list[tuple[int, int, int, int]]:
        """Groups that leave their owner, as (step, owner, place, destination), by step and destination."""
        steps, ranks = np.nonzero((self.owner != np.arange(self.owner.shape[1])) & (self.owner != IDLE))
        owners, places = self.owner[steps, ranks], self.place[steps, ranks]
        return list(zip(steps.tolist(), owners.tolist(), places.tolist(), ranks.tolist(), strict=True))

    def counts(self, known: Sequence[Integers]) -> Integers:
        """What each rank emits at each step, of shape (steps, ranks, fields); zeros where a rank idles.

        ``known`` are the tables of counts of each rank's groups.
        """
        nobody = np.zeros((1, known[0].shape[1]), dtype=np.int64)
        rows = np.concatenate([nobody, *known])
        first_row = np.cumsum([1, *(len(own) for own in known)])
        counts: Integers = rows[np.where(self.owner == IDLE, 0, first_row[self.owner] + self.place)]
        return counts

    def ordered(self, *entropy: int) -> "Deal":
        """The same steps in an order drawn from the given integers, so that the order says nothing about lengths.

        Where only the first (cheapest) step has idle ranks, as the dealer arranges it in a last round, it is not drawn
        and comes last: ranks then idle at the end of the epoch only.
        """
        idle = (self.owner == IDLE).any(axis=1)
        last = [0] if len(idle) and idle[0] and not idle[1:].any() else []
        drawn = permutation(len(idle) - len(last), STEP_ORDER, *entropy) + len(last)
        order = np.concatenate([drawn, last]).astype(np.intp)
        return Deal(self.owner[order], self.place[order])


def deal_round(costs: Sequence[Integers], exhausted: Sequence[bool], *, rebalance: bool) -> Deal:
    """The deal of a round, cheapest step first.

    ``costs`` are the costs of each rank's groups, oldest first; ``exhausted`` says whose stream has ended.
    """
    steps = steps_of_round([len(own) for own in costs], exhausted, rebalance=rebalance)
    if rebalance and any(exhausted):
        return _rebalanced(costs, steps)
    return _own_groups(costs, steps)


def steps_of_round(counts: Sequence[int], exhausted: Sequence[bool], *, rebalance: bool) -> int:
    """How many steps a round has, from each rank's number of groups and whether its stream has ended."""
    if all(exhausted):
        return -(-sum(counts) // len(counts)) if rebalance else max(counts)
    if any(exhausted) and rebalance:
        return sum(counts) // len(counts)
    return min(number for number, ended in zip(counts, exhausted, strict=True) if not ended)


def _own_groups(costs: Sequence[Integers], steps: int) -> Deal:
    """Every rank emits its own ``steps`` oldest groups, and a step holds groups of the same place in cost.

    A rank with fewer groups idles on the cheapest steps.
    """
    owner = np.full((steps, len(costs)), IDLE, dtype=np.int64)
    place = np.zeros((steps, len(costs)), dtype=np.int64)
    for rank, own in enumerate(costs):
        cheapest_first = np.argsort(own[:steps], kind="stable")
        owner[steps - len(cheapest_first) :, rank] = rank
        place[steps - len(cheapest_first) :, rank] = cheapest_first
    return Deal(owner, place)


def _rebalanced(costs: Sequence[Integers], steps: int) -> Deal:
    """Groups move between ranks so that all ranks have work of similar cost.

    The ``steps x ranks`` oldest groups (by place, then rank) are sorted by (cost, rank, place) and cut into slices, a
    slice being a step; where there are too few, the first slice lacks some. In a slice each rank keeps its cheapest
    own group, and the other groups go to the free ranks in order: as few groups as possible cross the network.
    """
    ranks = len(costs)
    all_ranks = np.repeat(np.arange(ranks), [len(own) for own in costs])
    all_places = np.concatenate([np.arange(len(own)) for own in costs])
    all_costs = np.concatenate(costs)
    taken = np.lexsort((all_ranks, all_places))[: steps * ranks]
    taken = taken[np.lexsort((all_places[taken], all_ranks[taken], all_costs[taken]))]
    missing = steps * ranks - len(taken)
    groups = list(zip(all_ranks[taken].tolist(), all_places[taken].tolist(), strict=True))
    owner = np.full((steps, ranks), IDLE, dtype=np.int64)
    place = np.zeros((steps, ranks), dtype=np.int64)
    for step in range(steps):
        members = groups[max(0, step * ranks - missing) : (step + 1) * ranks - missing]
        for rank, (origin, at) in _seat(members, ranks).items():
            owner[step, rank], place[step, rank] = origin, at
    return Deal(owner, place)


def _seat(members: list[tuple[int, int]], ranks: int) -> dict[int, tuple[int, int]]:
    """Which rank emits which of the groups (origin, place) of one step."""
    seats: dict[int, tuple[int, int]] = {}
    homeless = []
    for origin, place in members:
        if origin in seats:
            homeless.append((origin, place))
        else:
            seats[origin] = (origin, place)
    if homeless:
        free = [rank for rank in range(ranks) if rank not in seats]
        seats.update(zip(free, homeless, strict=False))
    return seats


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
    """Split the largest group by (footprint, samples) repeatedly, until ``missing`` groups are gained.

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


def burst_ends(counts: Integers, most_bytes: int) -> tuple[int, ...]:
    """Where to cut the steps of a round, so that no rank decodes more than ``most_bytes``: the end of each burst.

    ``counts`` has shape (steps, ranks, fields). A burst has at least one step. Without images there is nothing to
    decode, and the round is one burst.
    """
    steps = len(counts)
    if not counts[..., IMAGES].any():
        return (steps,) if steps else ()
    ends = []
    start = 0
    held = 0
    for step, largest in enumerate(counts[..., BYTES].max(axis=1).tolist()):
        if step > start and held + largest > most_bytes:
            ends.append(step)
            start, held = step, 0
        held += largest
    return (*ends, steps)
