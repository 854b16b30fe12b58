"""The round state machine of one rank, as a pure program: it asks for gathers and exchanges and says what to deliver.

:class:`Program` is driven from outside: whoever runs it answers each event that it yields, a transport in a real job
or a loop over all ranks in a simulation. All ranks yield the same gathers and deliveries in the same order, whatever
their data: that is what rules out a deadlock. One round::

    Gather where this run begins -> (after a resume: the rest of a round)

    plan groups -> Gather headers -> (end; or failure: Gather causes -> PeerError)
                -> Gather counts -> (last round, uneven: Gather sizes, split) -> deal
                -> (Exchange what moves, Gather a zero)
                -> for each burst: (images: Decode, Gather exact counts) -> (Exchange fillers, Gather a zero)
                   -> Deliver step, ...
                -> next round

Without images a round is one burst, and the counts of its groups are exact already.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from odb_stream.batching.cost import IMAGES, PADDED, SAMPLES, Counts, Footprint, Group, Integers, Size, table
from odb_stream.batching.deal import (
    BURST_SHARE,
    IDLE,
    Deal,
    burst_ends,
    deal_round,
    missing_groups,
    replaced,
    split_candidates,
    split_counts,
    split_groups,
)
from odb_stream.batching.delivery import Delivery, Stop
from odb_stream.batching.messages import (
    ALL_HAVE_THEIRS,
    CLOSING,
    DAMAGED,
    EXHAUSTED,
    FAILED,
    HEADER_FIELDS,
    RECEIVED,
    Event,
    Events,
    Exchange,
    Gather,
    Saves,
    Unsaved,
    cause_row,
    check_beginnings,
    check_damage,
    check_in_step,
    check_progress,
    pack_beginning,
    pack_cause,
    pack_header,
    stop_error,
    stopping_row,
)
from odb_stream.batching.totals import RankReport, StepCounter, encode_report, sum_reports
from odb_stream.batching.window import GroupPlanner
from odb_stream.checkpoint.state import HeldGroup, Place, RoundState, SentGroup
from odb_stream.config import FailureBudget

T = TypeVar("T")

DRAIN_DEPTH = 8
"""Steps' worth of groups that the active ranks plan together in a round of the drain.

When some ranks have run out of data, the others plan for all. A deeper drain moves more groups at a time and evens out
the steps better; every group that moves costs its bytes on the network and in memory."""


@dataclass
class Program(Generic[T]):
    """One rank's run over its stream.

    ``groups`` gives the groups of this rank, and ``saves`` makes its states. ``closing`` says whether this rank's
    training loop has left. ``quota`` ends an epoch at the first step at which all ranks together emitted that many
    samples; the stream must then be endless. ``most_bytes`` bounds what a rank plans ahead in a drain. ``resume`` is
    where to continue; ``groups`` must be at the same place. ``counter`` holds what other ranks had done in the epoch
    before.
    """

    rank: int
    ranks: int
    groups: GroupPlanner[T]
    footprint: Footprint
    seed: int
    epoch: int
    saves: Saves[T] = field(default_factory=Unsaved)
    closing: Callable[[], bool] = lambda: False
    rebalance: bool = True
    quota: int | None = None
    most_bytes: int = 512 * 1024 * 1024
    failure_budget: FailureBudget = field(default_factory=lambda: FailureBudget(share=None))
    resume: Place | None = None
    counter: StepCounter = field(default_factory=StepCounter)
    round: int = 0

    def __post_init__(self) -> None:
        self._reports = np.tile(encode_report(RankReport({})), (self.ranks, 1))
        self._received = self._damaged = 0
        self._surplus: list[Group[T]] = []
        self._to_regain: list[HeldGroup] = []
        self._active = self.ranks
        self._dry_rounds = 0
        self._delivery = Delivery(
            rank=self.rank,
            ranks=self.ranks,
            groups=self.groups,
            saves=self.saves,
            footprint=self.footprint,
            quota=self.quota,
            status=self._status,
            check_damage=self._check_damage,
            counter=self.counter,
        )

    @property
    def report(self) -> RankReport:
        """What all ranks read and dropped, and the longest that a sample waited, as of the last gather of headers."""
        return sum_reports(self._reports)._replace(damaged=self._damaged, received=self._received)

    def run(self) -> Events:
        """The whole run. Raises PeerError if a rank failed or left; the steps delivered before it remain valid."""
        beginning = yield Gather(pack_beginning(self.epoch, self.resume))
        check_beginnings(beginning, self.rank)
        if self.resume is not None:
            self.round = self.resume.round.number
            self._note_headers((yield Gather(self._header(0, None), stopping_row)))
            self._to_regain = list(self.resume.round.surplus)
            stop = yield from self._delivery.remaining(self.resume)
            if stop is not None:
                yield from self._stop(stop)
            if stop is not None or self._next_round(self.resume.round):
                return
        while True:
            planned, failure = self._plan()
            headers = yield Gather(self._header(len(planned), failure), stopping_row)
            check_in_step(headers, self.rank, self.epoch, self.round)
            self._note_headers(headers)
            status = headers[:, 0]
            counts: list[int] = headers[:, 1].tolist()
            exhausted: list[bool] = (status & EXHAUSTED != 0).tolist()
            stopped = (status & (FAILED | CLOSING)).any()
            if not stopped:
                self._check_damage(self._damaged)
            if not any(counts) and all(exhausted):
                return
            if stopped:
                yield from self._stop(Stop(status, failure))
                return
            state, stop = yield from self._round(planned, counts, exhausted)
            if stop is not None:
                yield from self._stop(stop)
                return
            if self._next_round(state):
                return

    def _note_headers(self, headers: Integers) -> None:
        self._reports = headers[:, HEADER_FIELDS:]
        self._damaged, self._received = headers[:, [DAMAGED, RECEIVED]].sum(axis=0).tolist()

    def _next_round(self, state: RoundState) -> bool:
        """Go over to the round after this one; True where none follows."""
        self.round = state.number + 1
        self._active = state.active
        self._dry_rounds = 0 if self._delivery.take_delivered() else state.dry_rounds + 1
        if self.quota is not None:
            check_progress(self._dry_rounds, self.report.dropped)
        return state.last

    def _plan(self) -> tuple[list[Group[T]], Exception | None]:
        """This round's groups, the surplus first, and once the stream has ended all that is left; or what it raised."""
        try:
            planned, self._surplus = self._surplus + self.saves.reread(self._to_regain), []
            self._to_regain = []
            lookahead = target = self.groups.begin_round(self.round)
            if self._active < self.ranks and self.rebalance:
                # In the drain the active ranks plan for all: their share of DRAIN_DEPTH steps of every rank.
                target = max(lookahead, -(-DRAIN_DEPTH * self.ranks // self._active))
            # Groups wait in memory until they move, so a drain of large samples stops at most_bytes. It never stops
            # below a lookahead, nor below one group for each rank: a round of the drain must make at least one step.
            least = min(target, max(lookahead, self.ranks))
            held = sum(group.counts.bytes for group in planned)
            while self.groups.source_ended or (
                len(planned) < target and (held <= self.most_bytes or len(planned) < least)
            ):
                group = self.groups.next_group()
                if group is None:
                    break
                planned.append(group)
                held += group.counts.bytes
        except Exception as error:  # noqa: BLE001 - whatever ends this rank's stream, all ranks must be told
            return [], error
        return planned, None

    def _header(self, planned: int, failure: Exception | None) -> Integers:
        exhausted = EXHAUSTED if failure is None and self.groups.exhausted else 0
        return pack_header(self._status(failure) | exhausted, planned, self.epoch, self.round, self.groups.report())

    def _status(self, failure: Exception | None) -> int:
        return (CLOSING if self.closing() else 0) | (FAILED if failure is not None else 0)

    def _check_damage(self, damaged: int) -> None:
        check_damage(self.failure_budget, damaged, self._received, self._where())

    def _where(self) -> str:
        steps = self._delivery.counter.steps
        return f"epoch {self.epoch}, " + (f"after step {steps - 1}" if steps else "before the first step")

    def _stop(self, stop: Stop) -> Events:
        """Exchange why the run ends, and raise it; a rank that left by itself just ends."""
        messages = yield Gather(pack_cause(stop.failure), cause_row)
        if self.closing() and stop.status[self.rank] & CLOSING:
            return
        if stop.failure is not None and self.ranks == 1:
            raise stop.failure
        raise stop_error(stop.status, messages, self._where()) from stop.failure

    def _round(
        self, planned: list[Group[T]], numbers: list[int], exhausted: list[bool]
    ) -> Generator[Event, Any, tuple[RoundState, Stop | None]]:
        """Agree on the deal, move what moves, deliver the steps."""
        counts_here = table([group.counts for group in planned], max(numbers), len(Counts._fields))
        tables = yield from self._gather_tables(counts_here)
        known: list[Integers] = [rows[:number] for rows, number in zip(tables, numbers, strict=True)]
        if self.rebalance and all(exhausted) and missing_groups(numbers):
            planned, known = yield from self._split(planned, known)
        costs = [own[:, PADDED] for own in known]
        deal = deal_round(costs, exhausted, rebalance=self.rebalance).ordered(self.seed, self.epoch, self.round)
        received = yield from self._exchange(planned, deal)
        if deal.moves():
            yield ALL_HAVE_THEIRS
        named = set(deal.place[deal.owner == self.rank].tolist())
        self._surplus = [group for place, group in enumerate(planned) if place not in named]
        mine = self._my_groups(planned, deal, received)
        counts = deal.counts(known)
        state = self._state(planned, deal, mine, counts, exhausted)
        stop = yield from self._delivery.round(state, mine, counts, deal.owner == np.arange(self.ranks))
        return state, stop

    def _state(
        self,
        planned: list[Group[T]],
        deal: Deal,
        mine: list[Group[T] | None],
        counts: Integers,
        exhausted: list[bool],
    ) -> RoundState:
        held = self.saves.held
        return RoundState(
            number=self.round,
            active=exhausted.count(False),
            last=all(exhausted),
            dry_rounds=self._dry_rounds,
            images=bool(counts[..., IMAGES].any()),
            bursts=burst_ends(counts, self.most_bytes // BURST_SHARE),
            mine=tuple(None if group is None else held(group) for group in mine),
            origins=tuple(deal.owner[:, self.rank].tolist()),
            sent=tuple(
                SentGroup(step, destination, held(planned[place]))
                for step, owner, place, destination in deal.moves()
                if owner == self.rank
            ),
            surplus=tuple(map(held, self._surplus)),
            window=self.saves.window_state(),
        )

    def _split(
        self, planned: list[Group[T]], known: list[Integers]
    ) -> Generator[Event, Any, tuple[list[Group[T]], list[Integers]]]:
        """Split the largest groups of the last round, so that every rank has one at every step."""
        chosen = split_candidates([own[:, PADDED] for own in known], [own[:, SAMPLES] for own in known])
        if not chosen:
            return planned, known
        samples = {(rank, place): int(known[rank][place, SAMPLES]) for rank, place in chosen}
        height = max(sum(number for (r, _), number in samples.items() if r == rank) for rank in range(self.ranks))
        mine = [size for rank, place in chosen if rank == self.rank for size in planned[place].sizes]
        tables = yield from self._gather_tables(table(mine, height, len(Size._fields)))
        rows = [iter(sizes.tolist()) for sizes in tables]
        sizes = {key: tuple(Size(*next(rows[key[0]])) for _ in range(samples[key])) for key in chosen}
        parts = split_groups(sizes, missing_groups([len(own) for own in known]), self.footprint)
        planned = replaced(planned, self.rank, parts, lambda place, part: planned[place].part(part, self.footprint))
        return planned, [split_counts(own, rank, parts, sizes, self.footprint) for rank, own in enumerate(known)]

    def _exchange(self, planned: list[Group[T]], deal: Deal) -> Generator[Event, Any, dict[int, deque[Group[T]]]]:
        """Send the groups that others emit, and receive those that this rank emits for others."""
        outgoing: dict[int, list[Group[T]]] = {}
        incoming: Counter[int] = Counter()
        for _, owner, place, destination in deal.moves():
            if owner == self.rank:
                outgoing.setdefault(destination, []).append(planned[place])
            if destination == self.rank:
                incoming[owner] += 1
        if not outgoing and not incoming:
            return {}
        received = yield Exchange(outgoing, dict(incoming))
        return {owner: deque(groups) for owner, groups in received.items()}

    def _my_groups(
        self, planned: list[Group[T]], deal: Deal, received: dict[int, deque[Group[T]]]
    ) -> list[Group[T] | None]:
        """What this rank emits, step by step; None where it idles."""
        seats = zip(deal.owner[:, self.rank].tolist(), deal.place[:, self.rank].tolist(), strict=True)
        return [
            None if owner == IDLE else planned[place] if owner == self.rank else received[owner].popleft()
            for owner, place in seats
        ]

    def _gather_tables(self, mine: Integers) -> Generator[Event, Any, Integers]:
        """Gather one table of integers of the same shape from every rank: (ranks, rows, columns)."""
        reply: Integers = yield Gather(mine.ravel())
        return reply.reshape(self.ranks, *mine.shape)
