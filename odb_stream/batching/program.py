"""The round state machine of one rank, as a pure program: it asks for gathers and exchanges and says what to deliver.

:class:`Program` is driven from outside: each event that it yields is answered by whoever runs it, a transport in a real
job or a loop over all ranks in a simulation. All ranks yield the same gathers and deliveries in the same order,
whatever their data: that is what rules out a deadlock. One round::

    Gather where this run begins -> (after a resume: what is left of a round)

    plan groups -> Gather heads -> (end; or failure: Gather messages -> PeerError)
                -> Gather counts -> (last round, uneven: Gather sizes, split) -> deal
                -> (Exchange what moves, Gather a zero)
                -> for each burst: (images: Decode, Gather exact counts) -> (Exchange stand-ins, Gather a zero)
                   -> Deliver step, ...
                -> next round

Without images a round is one burst, and the counts of its groups are exact already.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from odb_stream.batching.account import Account, encode, total
from odb_stream.batching.bursts import BURST_SHARE, burst_ends
from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.deal import IDLE, Deal, deal_round
from odb_stream.batching.delivery import Delivery, Stop
from odb_stream.batching.events import ALL_HAVE_THEIRS, Event, Exchange, Gather, Packer, Run
from odb_stream.batching.groups import IMAGES, PADDED, SAMPLES, Counts, Group, Integers, table
from odb_stream.batching.ledger import Ledger
from odb_stream.batching.messages import (
    CLOSING,
    DAMAGED,
    EXHAUSTED,
    FAILED,
    HEAD_FIELDS,
    RECEIVED,
    cause_row,
    check_beginnings,
    check_damage,
    check_in_step,
    check_yield,
    pack_beginning,
    pack_cause,
    pack_head,
    stop_error,
    stopping_row,
)
from odb_stream.batching.splits import missing_groups, replaced, split_candidates, split_counts, split_groups
from odb_stream.checkpoint.state import Place, References, RoundState, Sent
from odb_stream.config import FailureBudget

T = TypeVar("T")

DRAIN_DEPTH = 8
"""Steps' worth of groups that the active ranks plan together in a round of the drain."""


@dataclass
class Program(Generic[T]):
    """One rank's run over its stream.

    ``closing`` tells whether this rank's training loop has left. ``quota`` ends an epoch at the first step at which all
    ranks together emitted that many samples; the stream must then be endless. ``most_bytes`` bounds what a rank plans
    ahead in a drain. ``resume`` is where to go on; the packer must stand there. ``ledger`` holds what was done in the
    epoch before by other ranks. ``account`` is over all ranks, as of
    the last gather of heads.
    """

    rank: int
    ranks: int
    packer: Packer[T]
    footprint: Footprint
    seed: int
    epoch: int
    closing: Callable[[], bool] = lambda: False
    rebalance: bool = True
    quota: int | None = None
    most_bytes: int = 512 * 1024 * 1024
    failure_budget: FailureBudget = field(default_factory=lambda: FailureBudget(share=None))
    resume: Place | None = None
    ledger: Ledger = field(default_factory=Ledger)
    round: int = 0

    def __post_init__(self) -> None:
        self._accounts = np.tile(encode(Account({})), (self.ranks, 1))
        self._received = self._damaged = 0
        self._surplus: list[Group[T]] = []
        self._to_regain: list[References] = []
        self._active = self.ranks
        self._dry_rounds = 0
        self._delivery = Delivery(
            rank=self.rank,
            ranks=self.ranks,
            packer=self.packer,
            footprint=self.footprint,
            quota=self.quota,
            status=self._status,
            check_damage=self._check_damage,
            ledger=self.ledger,
        )

    @property
    def account(self) -> Account:
        """What all ranks read and dropped so far, and the longest that a sample waited."""
        return total(self._accounts)._replace(damaged=self._damaged, received=self._received)

    def run(self) -> Run:
        """The whole run. Raises PeerError where a rank failed or left; the steps delivered until then stand."""
        beginning = yield Gather(pack_beginning(self.epoch, self.resume))
        check_beginnings(beginning, self.rank)
        if self.resume is not None:
            self.round = self.resume.round.round
            self._note_heads((yield Gather(self._head(0, None), stopping_row)))
            self._to_regain = list(self.resume.round.surplus)
            stop = yield from self._delivery.rest(self.resume)
            if stop is not None:
                yield from self._stop(stop)
            if stop is not None or self._next_round(self.resume.round):
                return
        while True:
            planned, failure = self._plan()
            heads = yield Gather(self._head(len(planned), failure), stopping_row)
            check_in_step(heads, self.rank, self.epoch, self.round)
            self._note_heads(heads)
            status = heads[:, 0]
            counts: list[int] = heads[:, 1].tolist()
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

    def _note_heads(self, heads: Integers) -> None:
        self._accounts = heads[:, HEAD_FIELDS:]
        self._damaged, self._received = heads[:, [DAMAGED, RECEIVED]].sum(axis=0).tolist()

    def _next_round(self, state: RoundState) -> bool:
        """Go over to the round after this one; True where none follows."""
        self.round = state.round + 1
        self._active = state.active
        self._dry_rounds = 0 if self._delivery.delivered else state.dry_rounds + 1
        self._delivery.delivered = 0
        if self.quota is not None:
            check_yield(self._dry_rounds, self.account.dropped)
        return state.last

    def _plan(self) -> tuple[list[Group[T]], Exception | None]:
        """This round's groups, the surplus first, and once the stream has ended all that is left; or what it raised."""
        try:
            planned, self._surplus = self._surplus + self.packer.reread(self._to_regain), []
            self._to_regain = []
            lookahead = target = self.packer.begin_round(self.round)
            if self._active < self.ranks and self.rebalance:
                target = max(lookahead, -(-DRAIN_DEPTH * self.ranks // self._active))
            least = min(target, max(lookahead, self.ranks))
            held = sum(group.counts.bytes for group in planned)
            while self.packer.source_ended or (
                len(planned) < target and (held <= self.most_bytes or len(planned) < least)
            ):
                group = self.packer.next_group()
                if group is None:
                    break
                planned.append(group)
                held += group.counts.bytes
        except Exception as error:  # noqa: BLE001 - whatever ends this rank's stream, all ranks must hear of it
            return [], error
        return planned, None

    def _head(self, planned: int, failure: Exception | None) -> Integers:
        exhausted = EXHAUSTED if failure is None and self.packer.exhausted else 0
        return pack_head(self._status(failure) | exhausted, planned, self.epoch, self.round, self.packer.account())

    def _status(self, failure: Exception | None) -> int:
        return (CLOSING if self.closing() else 0) | (FAILED if failure is not None else 0)

    def _check_damage(self, damaged: int) -> None:
        check_damage(self.failure_budget, damaged, self._received, self._where())

    def _where(self) -> str:
        steps = self._delivery.ledger.steps
        return f"epoch {self.epoch}, " + (f"after step {steps - 1}" if steps else "before the first step")

    def _stop(self, stop: Stop) -> Run:
        """Tell one another why the run ends, and raise it; a rank that left by itself just ends."""
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
        references = self.packer.references
        return RoundState(
            round=self.round,
            active=exhausted.count(False),
            last=all(exhausted),
            dry_rounds=self._dry_rounds,
            images=bool(counts[..., IMAGES].any()),
            bursts=burst_ends(counts, self.most_bytes // BURST_SHARE),
            mine=tuple(None if group is None else references(group) for group in mine),
            origins=tuple(deal.owner[:, self.rank].tolist()),
            sent=tuple(
                Sent(step, destination, references(planned[place]))
                for step, (owner, place, destination) in deal.moves_by_step()
                if owner == self.rank
            ),
            surplus=tuple(map(references, self._surplus)),
            packer=self.packer.snapshot(),
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
        for owner, place, destination in deal.moves():
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
        mine: list[Group[T] | None] = []
        for owner, place in zip(deal.owner[:, self.rank].tolist(), deal.place[:, self.rank].tolist(), strict=True):
            if owner == IDLE:
                mine.append(None)
            else:
                mine.append(planned[place] if owner == self.rank else received[owner].popleft())
        return mine

    def _gather_tables(self, mine: Integers) -> Generator[Event, Any, Integers]:
        """Gather one table of integers of the same shape from every rank: (ranks, rows, columns)."""
        reply: Integers = yield Gather(mine.ravel())
        return reply.reshape(self.ranks, *mine.shape)
