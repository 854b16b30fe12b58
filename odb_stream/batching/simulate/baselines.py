"""Policies to compare with: fixed batches, offline token-budget oracles, and the paper's published window policy.

Each takes the lengths of every rank and returns a schedule: a list of steps, a step being one group (a list of
lengths) a rank, empty where the rank idles. Used by ``simulate`` and benchmarks only.
"""

from bisect import bisect_left
from itertools import zip_longest

from odb_stream.batching.cost import Footprint

LengthGroup = list[int]
Schedule = list[list[LengthGroup]]

BUCKETS = 16


def fixed(ranks: list[list[int]], batch_size: int) -> Schedule:
    """Batches of ``batch_size`` samples in arrival order, whatever their lengths; short ranks idle at the end."""
    batches = [[lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)] for lengths in ranks]
    return [list(step) for step in zip_longest(*batches, fillvalue=[])]


def gmt(ranks: list[list[int]], footprint: Footprint) -> Schedule:
    """Global max-token: all samples of all ranks sorted by length, cut greedily at the budget, neighbours in a step.

    An offline oracle: it needs every length before the first batch, and moves samples between ranks freely.
    """
    groups = _cut(sorted(length for lengths in ranks for length in lengths), footprint)
    return _deal(groups, len(ranks))


def bmt(ranks: list[list[int]], footprint: Footprint, buckets: int = BUCKETS) -> Schedule:
    """Bucketed max-token: buckets of equal sample counts by length, cut at the budget in arrival order within each.

    Offline as well (the bucket bounds need all lengths), but the order inside a bucket stays random.
    """
    arrivals = [length for step in zip_longest(*ranks) for length in step if length is not None]
    ordered = sorted(arrivals)
    bounds = sorted({ordered[len(ordered) * (i + 1) // buckets - 1] for i in range(buckets)}) if ordered else []
    contents: list[LengthGroup] = [[] for _ in bounds]
    for length in arrivals:
        contents[bisect_left(bounds, length)].append(length)
    return _deal([group for bucket in contents for group in _cut(bucket, footprint)], len(ranks))


def paper_window(ranks: list[list[int]], footprint: Footprint, *, window: int, slots: int) -> Schedule:
    """The published window policy (arXiv 2606.19989 and its implementation), every rank with its own stream.

    Each round a rank takes a window of samples, flattens and groups all of it, and the ranks agree on a number of
    groups: the largest count, but no more than the smallest positive sample count and the ``slots`` of the output
    queue. A rank with fewer groups peels single samples off its last group that still has two; a rank with more keeps
    its largest groups and takes the samples of the others into the next round. Ranks that end early idle.
    """
    schedule: Schedule = []
    streams = [list(reversed(lengths)) for lengths in ranks]
    held: list[LengthGroup] = [[] for _ in ranks]
    while True:
        for stream, samples in zip(streams, held, strict=True):
            while stream and len(samples) < window:
                samples.append(stream.pop())
        counts = [len(samples) for samples in held if samples]
        if not counts:
            return schedule
        grouped = [paper_groups(samples, footprint) for samples in held]
        target = min(max(len(groups) for groups in grouped), min(counts), slots)
        for rank, groups in enumerate(grouped):
            _peel(groups, target)
            if len(groups) > target:
                groups.sort(key=sum, reverse=True)
            held[rank] = [length for group in groups[target:] for length in group]
        schedule.extend([groups[i] if i < len(groups) else [] for groups in grouped] for i in range(target))


def paper_groups(samples: list[int], footprint: Footprint) -> list[LengthGroup]:
    """One window of the published policy: sort, walk from the longest, drain everything.

    A group closes when it has as many members as the budget holds of the length that closed the group before it; the
    first group closes at once.
    """
    groups: list[LengthGroup] = []
    members: LengthGroup = []
    size = 1
    for length in sorted(samples, reverse=True):
        members.append(length)
        if len(members) >= size:
            groups.append(members)
            members = []
            size = max(1, footprint.budget.tokens // length)
    if members:
        groups.append(members)
    return groups


def _peel(groups: list[LengthGroup], target: int) -> None:
    while groups and len(groups) < target:
        donor = next(group for group in reversed(groups) if len(group) > 1)
        groups.append([donor.pop()])


def _cut(lengths: list[int], footprint: Footprint) -> list[LengthGroup]:
    """Cut a sequence into groups, each as long as the budget allows; a sample over the budget is a group of its own."""
    groups: list[LengthGroup] = []
    longest = total = 0
    for length in lengths:
        grown = max(longest, length)
        count = len(groups[-1]) + 1 if groups else 1
        tokens = count * footprint.rounded(grown) if footprint.layout == "padded" else footprint.rounded(total + length)
        most_samples = footprint.budget.samples
        if not groups or tokens > footprint.budget.tokens or (most_samples is not None and count > most_samples):
            groups.append([])
            longest = total = 0
        groups[-1].append(length)
        longest = max(longest, length)
        total += length
    return groups


def _deal(groups: list[LengthGroup], ranks: int) -> Schedule:
    """Neighbouring groups, which cost alike, make a step."""
    steps = [groups[i : i + ranks] for i in range(0, len(groups), ranks)]
    return [step + [[]] * (ranks - len(step)) for step in steps]
