"""What a policy would give on an array of lengths: the same pure code as the real stages, without data or processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from odb_stream.batching.cost import Footprint, Group, Size
from odb_stream.batching.program import Program
from odb_stream.batching.simulate import baselines
from odb_stream.batching.simulate.baselines import Schedule
from odb_stream.batching.simulate.lockstep import Lockstep
from odb_stream.batching.totals import critical_ratio, padding_ratio, utilisation
from odb_stream.batching.window import GroupPlanner
from odb_stream.config import Policy, require_choice, require_int
from odb_stream.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The outcome of a simulation; tokens are counted with the layout's padding.

    The ratios are those of :mod:`odb_stream.batching.totals`. ``idle_steps`` counts ranks that idle, over all steps.
    ``max_delay`` counts groups formed between a sample's entry into the window and its planning (anchored only).
    """

    policy: str
    layout: str
    world_size: int
    window: int
    steps: int
    emitted: int
    dropped: int
    idle_steps: int
    padding_ratio: float
    real_utilisation: float
    critical_ratio: float
    over_budget_groups: int
    max_delay: int


def deal(lengths: Sequence[int], world_size: int, shares: Sequence[float] | None = None) -> list[list[int]]:
    """Lengths by rank: round-robin, or contiguous parts in the proportion of ``shares`` (one a rank)."""
    require_int("world_size", world_size, minimum=1)
    if shares is None:
        return [list(lengths[rank::world_size]) for rank in range(world_size)]
    if len(shares) != world_size:
        raise ConfigError(f"shares has {len(shares)} entries for world_size {world_size}: give one a rank")
    if any(share < 0 for share in shares) or not sum(shares) > 0:
        raise ConfigError(f"shares is {list(shares)}, but every share must be at least 0 and one above 0")
    bounds = [round(sum(shares[:rank]) / sum(shares) * len(lengths)) for rank in range(world_size + 1)]
    return [list(lengths[start:stop]) for start, stop in pairwise(bounds)]


def simulate(
    ranks: list[list[int]],
    *,
    policy: Policy,
    footprint: Footprint,
    window: int = 1024,
    lookahead: int = 128,
    batch_size: int = 8,
    rebalance: bool = True,
) -> Figures:
    """Run a policy over the lengths of each rank.

    A sample over the budget is dropped and counted, as with ``oversize="drop"``. ``batch_size`` is for ``fixed``,
    ``window`` and ``lookahead`` are for ``anchored`` and ``paper-window``, ``rebalance`` is for ``anchored``.

    Raises:
        ConfigError: an unknown policy, a setting below 1 or a length below 1.
    """
    require_choice("policy", policy, get_args(Policy))
    for name, value in (("window", window), ("lookahead", lookahead), ("batch_size", batch_size)):
        require_int(name, value, minimum=1)
    shortest = min((length for lengths in ranks for length in lengths), default=1)
    if shortest < 1:
        raise ConfigError(f"lengths hold {shortest}, but a sample has at least 1 token")
    kept = [[length for length in lengths if not footprint.oversize(Size(length))] for lengths in ranks]
    max_delay = 0
    if policy == "anchored":
        schedule, max_delay = anchored(kept, footprint, window=window, lookahead=lookahead, rebalance=rebalance)
    elif policy == "paper-window":
        schedule = baselines.paper_window(kept, footprint, window=window, slots=lookahead)
    elif policy == "fixed":
        schedule = baselines.fixed(kept, batch_size)
    else:
        schedule = (baselines.gmt if policy == "gmt" else baselines.bmt)(kept, footprint)
    dropped = sum(map(len, ranks)) - sum(map(len, kept))
    return measure(
        schedule, footprint, policy=policy, ranks=len(ranks), window=window, dropped=dropped, max_delay=max_delay
    )


class LengthPacker(GroupPlanner[int]):
    """The packing stage over an array of lengths; its samples are their places in the array."""

    def __init__(self, lengths: list[int], footprint: Footprint, *, window: int, lookahead: int) -> None:
        self._sizes = [Size(length) for length in lengths]
        self._stream = iter(enumerate(self._sizes))
        super().__init__(footprint, window=window, lookahead=lookahead)

    def draw(self) -> tuple[int, Size] | None:
        """The next length."""
        return next(self._stream, None)

    def take(self, tickets: list[int]) -> Group[int]:
        """The group of these places."""
        return Group.of(tuple(tickets), tuple(self._sizes[ticket] for ticket in tickets), self.footprint)


def anchored(
    ranks: list[list[int]], footprint: Footprint, *, window: int, lookahead: int, rebalance: bool = True
) -> tuple[Schedule, int]:
    """This package's policy, by the programs that real ranks run; the schedule and the largest delay."""
    packers = [LengthPacker(lengths, footprint, window=window, lookahead=lookahead) for lengths in ranks]
    programs = [
        Program(rank=rank, ranks=len(ranks), groups=packer, footprint=footprint, seed=0, epoch=0, rebalance=rebalance)
        for rank, packer in enumerate(packers)
    ]
    lockstep = Lockstep(programs)
    schedule = [
        [[size.length for size in deliver.group.sizes] if deliver.group else [] for deliver in step]
        for step in lockstep.steps()
    ]
    for error in lockstep.errors.values():
        raise error
    return schedule, max(packer.planner.window.max_delay for packer in packers)


def measure(
    schedule: Schedule, footprint: Footprint, *, policy: str, ranks: int, window: int, dropped: int, max_delay: int
) -> Figures:
    """The figures of a schedule."""
    budget = footprint.budget
    real = sum(sum(group) for step in schedule for group in step)
    costs = [[footprint.tokens(group) if group else 0 for group in step] for step in schedule]
    padded = sum(map(sum, costs))
    limit = budget.samples
    return Figures(
        policy=policy,
        layout=footprint.layout,
        world_size=ranks,
        window=window,
        steps=len(schedule),
        emitted=sum(len(group) for step in schedule for group in step),
        dropped=dropped,
        idle_steps=sum(1 for step in schedule for group in step if not group),
        padding_ratio=padding_ratio(real, padded),
        real_utilisation=utilisation(real, len(schedule) * ranks * budget.tokens),
        critical_ratio=critical_ratio(sum(map(max, costs)), real, ranks),
        over_budget_groups=sum(
            1
            for step, cost in zip(schedule, costs, strict=True)
            for group, tokens in zip(step, cost, strict=True)
            if tokens > budget.tokens or (limit is not None and len(group) > limit)
        ),
        max_delay=max_delay,
    )
