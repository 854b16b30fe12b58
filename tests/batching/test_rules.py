"""The rules that decide quality: which groups share a step, the order of steps, where groups go, what is split, and
which steps are decoded together.
"""

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest
from alignment_support import Job, costs, footprints, run, seeded_stream, sound_jobs
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_stream.batching.cost import BYTES, IMAGES, Counts, Footprint, Size
from odb_stream.batching.deal import IDLE, burst_ends, deal_round, halve, split_candidates, split_groups, steps_of_round


@given(sound_jobs())
@settings(max_examples=150)
def test_a_step_holds_groups_of_like_cost(job: Job) -> None:
    """Within a round, rebalanced steps do not overlap in cost; where each rank emits its own groups, a step that costs
    more on one rank costs no less on any other.

    Fails with: a rank's groups, or those of a drain, dealt without sorting them by cost.
    """
    done = run(job)
    for steps in done.by_round():
        moved = any(
            deliver.group and deliver.group.samples[0][0] != rank for step in steps for rank, deliver in enumerate(step)
        )
        cheapest_first = sorted((costs(step) for step in steps), key=lambda step: (sum(step), step))
        for lower, higher in pairwise(cheapest_first):
            if moved:
                assert max(lower) <= min(higher)
            else:
                assert all(low <= high for low, high in zip(lower, higher, strict=True))


@pytest.mark.parametrize(
    ("exhausted", "rebalance", "steps"),
    [
        ("...", True, 2),  # all have data: as many as the rank with the fewest groups, the others keep their surplus
        ("...", False, 2),
        ("..x", True, 3),  # the drain: 9 groups fill 3 steps of 3 ranks
        (".x.", False, 3),  # the rank without data idles and does not count
        ("xxx", True, 3),  # the last round: every group leaves
        ("xxx", False, 4),
    ],
)
def test_the_number_of_steps_of_a_round(exhausted: str, rebalance: bool, steps: int) -> None:
    """Fails with: any other of min, max and the mean in a case."""
    assert steps_of_round([4, 2, 3], [rank == "x" for rank in exhausted], rebalance=rebalance) == steps
    # The last round leaves no group; a drain leaves those that fill no step.
    assert steps_of_round([4, 2, 1], [True] * 3, rebalance=True) == 3
    assert steps_of_round([4, 2, 1], [False, True, True], rebalance=True) == 2


tables = st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=6).filter(any)


@given(tables)
def test_a_rebalanced_deal_takes_the_oldest_and_keeps_the_cheapest_own(own_costs: list[list[int]]) -> None:
    """Against the rule written out: the oldest groups by (place, rank), sorted by (cost, rank, place), cut into slices;
    each rank keeps its cheapest own group of a slice, the others go to the free ranks in order.

    Fails with: the newest groups dealt; groups given away although the rank has none cheaper.
    """
    ranks = len(own_costs)
    exhausted = [True] * (ranks - 1) + [ranks == 1]
    deal = deal_round([np.array(own, dtype=np.int64) for own in own_costs], exhausted, rebalance=True)
    groups = [(place, rank, cost) for rank, own in enumerate(own_costs) for place, cost in enumerate(own)]
    steps = -(-len(groups) // ranks) if all(exhausted) else len(groups) // ranks
    oldest = sorted(groups)[: steps * ranks]
    slots = [None] * (steps * ranks - len(oldest)) + sorted((cost, rank, place) for place, rank, cost in oldest)
    for step in range(steps):
        members = [slot for slot in slots[step * ranks : (step + 1) * ranks] if slot is not None]
        expected: dict[int, tuple[int, int]] = {}
        others = []
        for _, rank, place in members:
            if rank in expected:
                others.append((rank, place))
            else:
                expected[rank] = (rank, place)
        for free in range(ranks):
            if free not in expected and others:
                expected[free] = others.pop(0)
        for rank in range(ranks):
            owner, place = expected.get(rank, (IDLE, 0))
            assert (deal.owner[step, rank], deal.place[step, rank]) == (owner, place)
    assert len(deal.owner) == steps


def test_the_order_of_steps_is_drawn_from_seed_epoch_and_round() -> None:
    """Other rounds, epochs and seeds order the same steps otherwise; equal ones alike. Fails with: no permutation."""
    deal = deal_round([np.arange(1, 9), np.arange(11, 19)], [False, False], rebalance=True)
    orders = {
        entropy: tuple(deal.ordered(*entropy).place[:, 0].tolist())
        for entropy in [(seed, epoch, number) for seed in range(3) for epoch in range(3) for number in range(3)]
    }
    assert all(sorted(order) == list(range(8)) for order in orders.values())
    assert len(set(orders.values())) == len(orders)
    assert all(tuple(deal.ordered(*entropy).place[:, 0].tolist()) == order for entropy, order in orders.items())


def test_a_run_orders_the_steps_of_each_round_and_epoch_otherwise() -> None:
    """Fails with: an order drawn without the round, or without the epoch."""
    streams = tuple(seeded_stream(Random(rank), 60, 14) for rank in range(4))
    rounds = {epoch: run(Job(streams=streams, lookahead=8, epoch=epoch)).by_round() for epoch in (0, 1)}
    for first, second in zip(rounds[0], rounds[1], strict=True):
        assert sorted(map(costs, first)) == sorted(map(costs, second))
    orders = [
        np.argsort([sum(costs(step)) for step in steps[:8]]).tolist() for steps in (*rounds[0][:2], *rounds[1][:2])
    ]
    assert len({tuple(order) for order in orders}) == 4


@given(footprints(), st.integers(0, 1 << 20), st.integers(2, 7))
@settings(max_examples=150)
def test_a_group_is_halved_so_that_the_larger_half_is_small(footprint: Footprint, seed: int, number: int) -> None:
    """Padded: the best of all ways to halve it. Packed: longest first to the emptier half, at most 7/6 of the best.

    Fails with: a cut in the middle.
    """
    group = seeded_stream(Random(seed), number, footprint.budget.tokens)
    halves = halve(group, footprint)
    assert sorted(halves[0] + halves[1]) == list(range(number))
    assert halves[0]
    assert halves[1]
    lengths = [size.length for size in group]
    total = footprint.tokens if footprint.layout == "padded" else sum

    def larger(half: tuple[int, ...]) -> int:
        rest = [lengths[place] for place in range(number) if place not in half]
        return max(total([lengths[place] for place in half]), total(rest))

    best = min(larger(half) for members in range(1, number) for half in combinations(range(number), members))
    if footprint.layout == "padded":
        assert larger(halves[0]) == best
    else:
        assert larger(halves[0]) * 6 <= best * 7


@given(footprints(), st.integers(0, 1 << 20), st.integers(1, 12))
@settings(max_examples=150)
def test_the_largest_groups_are_split_first(footprint: Footprint, seed: int, missing: int) -> None:
    """Split candidates that all ranks can name from the counts alone suffice: the outcome equals that of splitting, one
    by one, the largest of all groups."""
    random = Random(seed)
    groups = {(rank, 0): seeded_stream(random, random.randint(1, 4), 6) for rank in range(8)}
    # One group on each of 8 ranks and none on some more: so many are missing.
    nothing = [np.array([], dtype=np.int64)] * missing
    own_costs = [np.array([footprint.tokens(size.length for size in group)]) for group in groups.values()]
    own_samples = [np.array([len(group)]) for group in groups.values()]
    candidates = split_candidates(own_costs + nothing, own_samples + nothing)
    assert len(candidates) <= missing
    parts = split_groups({key: groups[key] for key in candidates}, missing, footprint)
    assert parts == split_one_by_one(groups, missing, footprint)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), max_size=12), st.integers(0, 20), st.booleans())
def test_bursts_hold_no_more_bytes_than_allowed(estimates: list[list[int]], most: int, images: bool) -> None:
    """For steps x 3 ranks: all steps, in order; more than ``most`` on a rank only where one step has more by itself;
    and no burst could have taken the step after it on the estimate that cuts it."""
    counts = np.zeros((len(estimates), 3, len(Counts._fields)), dtype=np.int64)
    if estimates:
        counts[..., BYTES] = estimates
    counts[..., IMAGES] = images
    ends = burst_ends(counts, most)
    spans = [range(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    assert [step for span in spans for step in span] == list(range(len(estimates)))
    assert all(spans)
    largest = [max(step) for step in estimates]
    if not images:
        assert len(spans) == bool(estimates)
        return
    for span in spans:
        assert len(span) == 1 or all(sum(estimates[step][rank] for step in span) <= most for rank in range(3))
    for span, following in pairwise(spans):
        assert sum(largest[step] for step in span) + largest[following[0]] > most


def split_one_by_one(groups: dict[tuple[int, int], tuple[Size, ...]], missing: int, footprint: Footprint):
    """The rule written out over all groups."""
    parts = {key: [tuple(range(len(sizes)))] for key, sizes in groups.items()}
    for _ in range(missing):
        splittable = [
            (-footprint.tokens(groups[key][place].length for place in part), -len(part), key, part)
            for key, own in parts.items()
            for part in own
            if len(part) > 1
        ]
        if not splittable:
            break
        *_, key, part = min(splittable)
        sizes = [groups[key][place] for place in part]
        parts[key].remove(part)
        parts[key] += [tuple(part[place] for place in half) for half in halve(sizes, footprint)]
    return {key: own for key, own in parts.items() if len(own) > 1}
