"""All small instances of the alignment stage, and the check of one: run it to go through every one of them.

    python tests/support/small_scope.py --ranks 2 --share 1

An instance is a stream of up to 4 samples of 1 to 3 tokens on each rank, a window of 1, 2 or 3 samples, a lookahead of
1 or 2 groups, a budget of 2 tokens (a sample of 3 then goes alone) or 5, padded or packed, with or without rebalancing:
5,808 instances with one rank, 702,768 with two, 85,034,928 with three. Windows are below where the ramp starts.

A rank's groups follow from its own stream, the window and the budget, and a program sees nothing else of a stream.
So the packing stage is run for every stream, and the programs once for all instances that give every rank the same
groups: that is exact, and leaves 3,108 runs with one rank and 419,084 with two ranks.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import log
from multiprocessing import Pool
from random import Random
from typing import NamedTuple

from alignment_support import Job, check_steps

from odb_stream.batching.cost import Footprint, Group, Size
from odb_stream.batching.program import Program
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.totals import RankReport
from odb_stream.batching.window import Planner
from odb_stream.config import Budget

STREAMS = [stream for number in range(5) for stream in itertools.product((1, 2, 3), repeat=number)]
FOOTPRINTS = [Footprint(layout, Budget(tokens)) for layout in ("padded", "packed") for tokens in (2, 5)]
WINDOWS = (1, 2, 3)
LOOKAHEADS = (1, 2)

Lengths = tuple[int, ...]
Plan = tuple[Lengths, ...]
"""A rank's groups, as lengths."""


class Instance(NamedTuple):
    """What the programs of all ranks are given."""

    plans: tuple[Plan, ...]
    footprint: Footprint
    lookahead: int
    rebalance: bool


class PlannedPacker:
    """Hands out groups that were formed before."""

    def __init__(self, rank: int, plan: Plan, lookahead: int, footprint: Footprint) -> None:
        numbers = itertools.count()
        self.planned = [
            Group.of(tuple((rank, next(numbers)) for _ in lengths), tuple(map(Size, lengths)), footprint)
            for lengths in plan
        ]
        self.lookahead = lookahead
        self.formed = 0
        self.rounds = 0

    source_ended = False

    @property
    def exhausted(self) -> bool:
        return self.formed == len(self.planned)

    def begin_round(self, number: int) -> int:
        assert number < 20, "the run does not end"
        self.rounds = number + 1
        return self.lookahead

    def next_group(self) -> Group[tuple[int, int]] | None:
        if self.exhausted:
            return None
        self.formed += 1
        return self.planned[self.formed - 1]

    def report(self) -> RankReport:
        return RankReport({})


@cache
def plan(stream: Lengths, footprint: Footprint, window: int) -> Plan:
    """A rank's groups, checked: each sample once, within the budget or alone, and no later than the window allows."""
    arrivals = iter([(number, Size(length)) for number, length in enumerate(stream)])
    planner = Planner(footprint, lambda: next(arrivals, None), window=window, lookahead=1)
    planner.begin_round(0)
    groups = []
    while (group := planner.form_group()) is not None:
        groups.append(group)
        assert planner.exhausted == (sum(map(len, groups)) == len(stream))
    assert sorted(itertools.chain(*groups)) == list(range(len(stream)))
    assert planner.window.max_delay <= window
    formed = tuple(tuple(stream[number] for number in group) for group in groups)
    assert all(footprint.feasible(map(Size, lengths)) or len(lengths) == 1 for lengths in formed)
    return formed


def instances(ranks: int) -> Iterator[Instance]:
    """Every instance that differs from the others in what the programs see."""
    for footprint in FOOTPRINTS:
        seen: set[tuple[Plan, ...]] = set()
        for window in WINDOWS:
            plans = list(dict.fromkeys(plan(stream, footprint, window) for stream in STREAMS))
            seen.update(itertools.product(plans, repeat=ranks))
        for by_rank in sorted(seen):
            for lookahead, rebalance in itertools.product(LOOKAHEADS, (True, False)):
                yield Instance(by_rank, footprint, lookahead, rebalance)


def random_instance(ranks: int, random: Random) -> Instance:
    """One instance, each as likely as any other."""
    footprint, window = random.choice(FOOTPRINTS), random.choice(WINDOWS)
    plans = tuple(plan(random.choice(STREAMS), footprint, window) for _ in range(ranks))
    return Instance(plans, footprint, random.choice(LOOKAHEADS), random.choice((True, False)))


def some(every: Iterator[Instance], share: int) -> Iterator[Instance]:
    """One in ``share``, by a fixed seed."""
    random = Random(share)
    return (instance for instance in every if random.randrange(share) == 0)


def check(instance: Instance) -> None:
    """Run an instance and check A1 to A5, with the bound on idle steps and that groups stay whole."""
    plans, footprint, lookahead, rebalance = instance
    ranks = len(plans)
    packers = [PlannedPacker(rank, own, lookahead, footprint) for rank, own in enumerate(plans)]
    programs = [
        Program(rank=rank, ranks=ranks, groups=packer, footprint=footprint, seed=0, epoch=0, rebalance=rebalance)
        for rank, packer in enumerate(packers)
    ]
    lockstep = Lockstep(programs)
    steps = list(lockstep.steps())
    assert not lockstep.errors, lockstep.errors
    emitted = [[deliver.group for deliver in step] for step in steps]
    groups = [group for step in emitted for group in step if group]
    planned = {group.samples: group for packer in packers for group in packer.planned}
    samples = Counter(sample for group in groups for sample in group.samples)
    assert samples == Counter(itertools.chain(*planned)), "A2"
    # The samples of a rank are numbered in the order of its groups.
    streams = tuple(tuple(Size(length) for length in itertools.chain(*own)) for own in plans)
    check_steps(Job(streams, footprint), steps)
    rounds = {packer.rounds for packer in packers}
    assert len(rounds) == 1
    assert rounds.pop() <= len(steps) + 2 + log(ranks, 8), "A4"
    idle = [own.count(None) for own in emitted]
    if rebalance:
        assert not any(idle[:-1])
        assert sum(idle) < ranks
        assert len(groups) - len(planned) <= -len(planned) % ranks
        for step, own in zip(steps, emitted, strict=True):
            if step[0].state.round.number < steps[-1][0].state.round.number:
                assert all(group.samples in planned for group in own)
            elif any(idle):
                assert all(len(group.samples) == 1 for group in own if group)
    else:
        assert len(steps) == max(map(len, plans))
        assert len(groups) == len(planned)
        assert all(group.samples in planned for group in groups)
        assert all(group.samples[0][0] == rank for own in emitted for rank, group in enumerate(own) if group)
    if any(footprint.feasible(group.sizes) for group in groups):
        assert all(deliver.group or deliver.filler for deliver in steps[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", type=int, default=1, help="one in so many")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    chosen = some(instances(options.ranks), options.share)
    with Pool(options.processes) as pool:
        print(sum(1 for _ in pool.imap_unordered(check, chosen, chunksize=500)), "runs, all as they must be")


if __name__ == "__main__":
    main()
