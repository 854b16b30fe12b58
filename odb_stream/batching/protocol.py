"""The round state machine of one rank, as a pure program: it asks for gathers and exchanges and says what to deliver.

:class:`Program` is driven from outside: each event that it yields is answered by whoever runs it, a transport in a real
job or a loop over all ranks in a simulation. All ranks yield the same gathers and deliveries in the same order,
whatever their data: that is what rules out a deadlock. One round::

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
from odb_stream.batching.alignment import IDLE, Deal, deal_round
from odb_stream.batching.bursts import BURST_SHARE, burst_spans
from odb_stream.batching.events import (
    ALL_HAVE_THEIRS,
    Decode,
    Deliver,
    Event,
    Exchange,
    Gather,
    Packer,
    RoundState,
    Run,
)
from odb_stream.batching.footprint import Footprint, Size
from odb_stream.batching.groups import IMAGES, PADDED, SAMPLES, Counts, Group, Integers, table
from odb_stream.batching.heads import (
    CLOSING,
    EXHAUSTED,
    FAILED,
    HEAD_FIELDS,
    check_in_step,
    pack_cause,
    pack_head,
    stop_error,
)
from odb_stream.batching.ledger import Ledger
from odb_stream.batching.splitting import missing_groups, replaced, split_candidates, split_counts, split_groups
from odb_stream.batching.stand_ins import StandIns
from odb_stream.errors import ConfigError

T = TypeVar("T")

DRAIN_DEPTH = 8
"""Steps' worth of groups that the active ranks plan together in a round of the drain."""

MOST_DRY_ROUNDS = 32
"""Rounds without a step after which a run with a quota is given up."""


@dataclass
class Program(Generic[T]):
    """One rank's run over its stream.

    ``closing`` tells whether this rank's training loop has left. ``quota`` ends an epoch at the first step at which all
    ranks together emitted that many samples; the stream must then be endless. ``most_bytes`` bounds what a rank plans
    ahead in a drain. ``account`` is over all ranks, as of the last gather of heads.
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
    round: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self._accounts = np.tile(encode(Account({})), (self.ranks, 1))
        self._surplus: list[Group[T]] = []
        self._active = self.ranks
        self._delivered = 0
        self._dry_rounds = 0
        self._stand_ins: StandIns[T] = StandIns(self.ranks, self.footprint)
        self._state = self._snapshot()

    @property
    def account(self) -> Account:
        """What all ranks dropped so far, by reason, and the longest that a sample waited."""
        return total(self._accounts)

    def run(self) -> Run:
        """The whole run. Raises PeerError where a rank failed or left; the steps delivered until then stand."""
        while True:
            self._state = self._snapshot()
            planned, failure = self._plan()
            heads = yield Gather(self._head(len(planned), failure))
            check_in_step(heads, self.rank, self.epoch, self.round)
            self._accounts = heads[:, HEAD_FIELDS:]
            status = heads[:, 0]
            counts: list[int] = heads[:, 1].tolist()
            exhausted: list[bool] = (status & EXHAUSTED != 0).tolist()
            if not any(counts) and all(exhausted):
                return
            if (status & (FAILED | CLOSING)).any():
                yield from self._stop(status, failure)
                return
            stopped = yield from self._round(planned, counts, exhausted)
            self.round += 1
            self._check_yield()
            if stopped or all(exhausted):
                return
            self._active = exhausted.count(False)

    def _snapshot(self) -> RoundState:
        return RoundState(
            round=self.round,
            active=self._active,
            steps=self.ledger.steps,
            samples_seen=self.ledger.samples_seen,
            surplus=tuple(self._surplus),
            packer=self.packer.snapshot(),
        )

    def _check_yield(self) -> None:
        """With a quota, raise on all ranks alike when round after round emits nothing: the run would never end."""
        self._dry_rounds = 0 if self._delivered else self._dry_rounds + 1
        self._delivered = 0
        if self.quota is not None and self._dry_rounds == MOST_DRY_ROUNDS:
            raise ConfigError(
                f"closure is 'quota', but {MOST_DRY_ROUNDS} rounds in a row emitted no sample on any rank (dropped so "
                f"far: {self.account.dropped}): their images are broken, the log tells of the first"
            )

    def _plan(self) -> tuple[list[Group[T]], Exception | None]:
        """This round's groups, those left over from the round before first; or what the stream raised."""
        planned, self._surplus = self._surplus, []
        lookahead = target = self.packer.begin_round(self.round)
        if self._active < self.ranks and self.rebalance:
            target = max(lookahead, -(-DRAIN_DEPTH * self.ranks // self._active))
        least = min(target, max(lookahead, self.ranks))
        held = sum(group.counts.bytes for group in planned)
        try:
            while len(planned) < target and (held <= self.most_bytes or len(planned) < least):
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

    def _stop(self, status: Integers, failure: Exception | None) -> Run:
        """Tell one another why the run ends, and raise it; a rank that left by itself just ends."""
        messages = yield Gather(pack_cause(failure))
        if status[self.rank] & CLOSING:
            return
        if failure is not None and self.ranks == 1:
            raise failure
        steps = self.ledger.steps
        place = f"epoch {self.epoch}, " + (f"after step {steps - 1}" if steps else "before the first step")
        raise stop_error(status, messages, place) from failure

    def _round(
        self, planned: list[Group[T]], numbers: list[int], exhausted: list[bool]
    ) -> Generator[Event, Any, bool]:
        """Agree on the deal, move what moves, deliver the steps; True when the run ended in it."""
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
        return (yield from self._deliver_bursts(mine, deal.counts(known)))

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

    def _deliver_bursts(self, mine: list[Group[T] | None], counts: Integers) -> Generator[Event, Any, bool]:
        """Deliver the steps of a round in bursts, images decoded; True when a rank failed or left meanwhile."""
        bursts = burst_spans(counts, self.most_bytes // BURST_SHARE)
        for number, span in enumerate(bursts):
            groups, exact = mine[span], counts[span]
            if exact[..., IMAGES].any():
                upcoming = mine[bursts[number + 1]] if number + 1 < len(bursts) else []
                decoded = yield Decode(groups, upcoming)
                failure = decoded if isinstance(decoded, Exception) else None
                groups = [None] * len(groups) if failure is not None else decoded
                status, exact = yield from self._exact_counts(groups, failure)
                if (status & (FAILED | CLOSING)).any():
                    yield from self._stop(status, failure)
                    return True
            self._stand_ins.note(groups, exact)
            yield from self._share_stand_ins(exact)
            yield from self._deliver(groups, exact, span.start)
        return False

    def _exact_counts(
        self, groups: list[Group[T] | None], failure: Exception | None
    ) -> Generator[Event, Any, tuple[Integers, Integers]]:
        """All ranks' status, and their counts of a decoded burst, of shape (steps, ranks, fields)."""
        fields = len(Counts._fields)
        own = table([group.counts if group is not None else Counts() for group in groups], len(groups), fields)
        status = np.array([self._status(failure)], dtype=np.int64)
        reply = yield Gather(np.concatenate([status, own.ravel()]))
        return reply[:, 0], reply[:, 1:].reshape(self.ranks, len(groups), fields).transpose(1, 0, 2)

    def _share_stand_ins(self, counts: Integers) -> Run:
        """Give every rank that idles a sample to make an idle batch of, if any rank has one."""
        giver, needy = self._stand_ins.gifts(counts)
        if self.rank == giver and needy and self._stand_ins.mine is not None:
            yield Exchange({rank: [self._stand_ins.mine] for rank in needy}, {}, stand_ins=True)
        elif self.rank in needy:
            received = yield Exchange({}, {giver: 1}, stand_ins=True)
            self._stand_ins.accept(received[giver])
        if needy:
            yield ALL_HAVE_THEIRS

    def _deliver(self, mine: list[Group[T] | None], counts: Integers, first: int) -> Run:
        """The steps of a burst, with totals over all ranks; a step on which no rank emits is skipped by all."""
        for place, (group, of_ranks) in enumerate(zip(mine, counts, strict=True), start=first):
            if not of_ranks[:, SAMPLES].any():
                continue
            self._delivered += 1
            totals = self.ledger.enter(of_ranks)
            ends = self.quota is not None and totals.samples_seen >= self.quota
            stand_in = None if group is not None else self._stand_ins.mine
            yield Deliver(group, stand_in, totals, ends, self._state, place)
            if ends:
                self.ledger = Ledger()

    def _gather_tables(self, mine: Integers) -> Generator[Event, Any, Integers]:
        """Gather one table of integers of the same shape from every rank: (ranks, rows, columns)."""
        reply: Integers = yield Gather(mine.ravel())
        return reply.reshape(self.ranks, *mine.shape)
