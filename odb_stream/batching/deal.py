"""What all ranks decide alike from the costs of their groups: how many steps, who emits what, and in which order.

Every function here is pure, takes integers that all ranks know, and therefore gives the same answer on every rank.
The *deal* of a round says for each step and rank which group is emitted: its owner, and its place in the owner's list.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odb_stream.batching.groups import Integers
from odb_stream.seeds import STEP_ORDER, permutation

IDLE = -1
"""Owner of an empty place in a deal."""


@dataclass(frozen=True)
class Deal:
    """Who emits what in a round: ``owner`` and ``place`` of shape (steps, ranks), owner ``IDLE`` where a rank has none.

    What a rank planned and the deal does not name stays with it for the next round.
    """

    owner: Integers
    place: Integers

    def moves(self) -> list[tuple[int, int, int]]:
        """Groups that leave their owner, as (owner, place, destination), by step and destination."""
        return [move for _, move in self.moves_by_step()]

    def moves_by_step(self) -> list[tuple[int, tuple[int, int, int]]]:
        """The moves with the step at which the destination emits the group."""
        steps, ranks = np.nonzero((self.owner != np.arange(self.owner.shape[1])) & (self.owner != IDLE))
        owners, places = self.owner[steps, ranks], self.place[steps, ranks]
        moves = zip(owners.tolist(), places.tolist(), ranks.tolist(), strict=True)
        return list(zip(steps.tolist(), moves, strict=True))

    def counts(self, known: Sequence[Integers]) -> Integers:
        """What each rank emits at each step, of shape (steps, ranks, fields); zeros where one idles.

        ``known`` are the tables of counts of each rank's groups.
        """
        nobody = np.zeros((1, known[0].shape[1]), dtype=np.int64)
        rows = np.concatenate([nobody, *known])
        first_row = np.cumsum([1, *(len(own) for own in known)])
        counts: Integers = rows[np.where(self.owner == IDLE, 0, first_row[self.owner] + self.place)]
        return counts

    def ordered(self, *entropy: int) -> "Deal":
        """The same steps in an order drawn from the given integers.

        Where only the first (cheapest) step has idle ranks, as the dealer arranges it in a last round, it is not drawn
        and comes last.
        """
        idle = (self.owner == IDLE).any(axis=1)
        last = [0] if len(idle) and idle[0] and not idle[1:].any() else []
        drawn = permutation(len(idle) - len(last), STEP_ORDER, *entropy) + len(last)
        order = np.concatenate([drawn, last]).astype(np.intp)
        return Deal(self.owner[order], self.place[order])


def deal_round(costs: Sequence[Integers], exhausted: Sequence[bool], *, rebalance: bool) -> Deal:
    """The deal of a round, cheapest step first.

    ``costs`` are the costs of each rank's groups, oldest first; ``exhausted`` tells whose stream has ended.
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
    """Groups move between ranks so that all ranks have work of like cost.

    The ``steps x ranks`` oldest groups (by place, then rank) are sorted by (cost, rank, place) and cut into slices, a
    slice being a step; where there are too few, the first slice lacks some. In a slice each rank keeps its cheapest
    own group, and the other groups go to the free ranks in order.
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
