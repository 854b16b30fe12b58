"""Dealing shards and samples to ranks: every sample to exactly one rank, and equal shares where counts are known."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from odb_stream.config import World
from odb_stream.sources.assignment import assign, shard_order
from odb_stream.sources.source import Segment

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)
RANKS = st.integers(1, 8)


def samples_of(segment: Segment, count: int) -> list[tuple[int, int]]:
    """What a reader of the segment takes from a shard of ``count`` samples."""
    stop = count if segment.stop is None else segment.stop
    return [(segment.shard, index) for index in range(segment.start, stop, segment.step)]


def shares(counts: list[int], ranks: int, *, known: bool, epoch: int = 0) -> list[list[tuple[int, int]]]:
    addresses = [f"s{shard}" for shard in range(len(counts))]
    order = shard_order(len(counts), seed=3, epoch=epoch, shuffle=True)
    result = []
    for rank in range(ranks):
        plan = assign(addresses, World(rank, ranks), order=order, counts=counts if known else None)
        assert all(segment.address == addresses[segment.shard] for segment in plan)
        result.append([sample for segment in plan for sample in samples_of(segment, counts[segment.shard])])
    return result


@given(counts=COUNTS, ranks=RANKS, known=st.booleans(), epoch=st.integers(0, 3))
def test_each_sample_falls_to_exactly_one_rank(counts: list[int], ranks: int, known: bool, epoch: int) -> None:
    dealt = Counter(sample for share in shares(counts, ranks, known=known, epoch=epoch) for sample in share)
    assert dealt == Counter((shard, index) for shard, count in enumerate(counts) for index in range(count))


@example(counts=[0, 0], ranks=8)
@given(counts=COUNTS, ranks=RANKS)
def test_with_counts_ranks_differ_by_at_most_one_sample_and_hold_contiguous_parts(
    counts: list[int], ranks: int
) -> None:
    parts = shares(counts, ranks, known=True)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    order = shard_order(len(counts), seed=3, epoch=0, shuffle=True)
    joined = [sample for part in parts for sample in part]
    assert joined == [(shard, index) for shard in order for index in range(counts[shard])]


@given(shards=st.integers(1, 12), ranks=RANKS)
def test_without_counts_shards_stay_whole_or_every_rank_reads_all(shards: int, ranks: int) -> None:
    order = list(range(shards))
    plans = [assign([""] * shards, World(rank, ranks), order=order, counts=None) for rank in range(ranks)]
    if shards >= ranks:
        assert all(segment == Segment(segment.shard, "") for plan in plans for segment in plan)
        assert max(map(len, plans)) - min(map(len, plans)) <= 1
    else:
        assert all([segment.shard for segment in plan] == order for plan in plans)
        assert all((segment.step, segment.offset, segment.stop) == (ranks, 0, None) for p in plans for segment in p)


def test_odd_samples_do_not_all_fall_to_the_first_rank() -> None:
    assert [len(share) for share in shares([5, 5], 4, known=False)] != [4, 2, 2, 2]


def test_the_example_of_the_module() -> None:
    plans = [assign("abc", World(rank, 3), order=[2, 0, 1], counts=[5, 2, 4]) for rank in range(3)]
    assert plans == [
        (Segment(2, "c", 0, stop=3),),
        (Segment(2, "c", 3, stop=4), Segment(0, "a", 0, stop=3)),
        (Segment(0, "a", 3, stop=5), Segment(1, "b", 0, stop=2)),
    ]


def test_the_shard_order_is_drawn_from_seed_and_epoch() -> None:
    orders = [tuple(shard_order(20, seed=seed, epoch=epoch, shuffle=True)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] == tuple(shard_order(20, seed=0, epoch=0, shuffle=True))
    assert shard_order(4, seed=0, epoch=0, shuffle=False) == [0, 1, 2, 3]
