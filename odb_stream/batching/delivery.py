"""Delivery: the steps of a round, in bursts that are decoded together, and the rest of a round after a resume.

Without images a round is one burst, and the counts of its groups are exact already. With images a burst is decoded,
broken samples leave their groups, and one gather tells all ranks the exact counts. The rest of a round after a resume
always takes that way, in pieces, because its samples must be read again first.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from odb_stream.batching.cost import IMAGES, PATCHES, SAMPLES, TOKENS, Counts, Footprint, Group, Integers, table
from odb_stream.batching.deal import IDLE
from odb_stream.batching.messages import (
    ALL_HAVE_THEIRS,
    CLOSING,
    FAILED,
    Decode,
    Deliver,
    Event,
    Events,
    Exchange,
    Gather,
    Saves,
    stopping_row,
)
from odb_stream.batching.totals import StepCounter
from odb_stream.batching.window import GroupPlanner
from odb_stream.checkpoint.state import Place, RoundState, StepState

T = TypeVar("T")
Flags = npt.NDArray[np.bool_]


class Fillers(Generic[T]):
    """Keeps the smallest sample that this rank emitted of its own, and which ranks have one: all know the same.

    Samples over the budget are never taken, nor those of groups that came from other ranks: after a resume only their
    owner could read them again.
    """

    def __init__(self, ranks: int, footprint: Footprint) -> None:
        self._footprint = footprint
        self._has_one = np.zeros(ranks, dtype=bool)
        self.mine: Group[T] | None = None
        self.borrowed_from: int | None = None
        """The rank that gave ``mine``; None for a sample of this rank's own."""
        self.lent: dict[int, Group[T]] = {}
        """What this rank gave to others, by rank."""

    def note(self, rank: int, groups: list[Group[T] | None], counts: Integers, own: Flags) -> None:
        """Take note of steps to come: what this rank emits, and all ranks' counts of shape (steps, ranks, fields).

        ``own``, of shape (steps, ranks), is True where a rank emits a group of its own.
        """
        for group, is_own in zip(groups, own[:, rank], strict=True):
            if group is None or not is_own or not self._footprint.feasible(group.sizes):
                continue
            place = group.smallest()
            if self.mine is None or group.sizes[place].length < self.mine.sizes[0].length:
                self.mine, self.borrowed_from = group.part((place,), self._footprint), None
        # Counts are all that is known of other ranks' groups. Several samples in one group are within the budget; a
        # single one may have been sent alone because it is not.
        over = counts[..., TOKENS] > self._footprint.room
        if self._footprint.most_patches is not None:
            over |= counts[..., PATCHES] > self._footprint.most_patches
        fits = (counts[..., SAMPLES] > 1) | ((counts[..., SAMPLES] == 1) & ~over)
        self._has_one |= (fits & own).any(axis=0)

    def gifts(self, counts: Integers) -> tuple[int, list[int]]:
        """(giver, ranks that idle in these steps and have no sample); from now on the ranks count as having one."""
        needy: list[int] = np.flatnonzero((counts[..., SAMPLES] == 0).any(axis=0) & ~self._has_one).tolist()
        if not self._has_one.any():
            return 0, []
        giver = int(np.argmax(self._has_one))
        self._has_one[needy] = True
        return giver, needy

    def lend(self, ranks: list[int]) -> dict[int, list[Group[T]]]:
        """What this rank gives these ranks."""
        if self.mine is None:
            return {}
        self.lent |= dict.fromkeys(ranks, self.mine)
        return {rank: [self.mine] for rank in ranks}

    def accept(self, group: Group[Any], giver: int) -> None:
        """Keep the sample that another rank gave."""
        self.mine, self.borrowed_from = group, giver

    def restore(self, mine: Group[T] | None, lent: dict[int, Group[T]], has_one: Integers) -> None:
        """Continue with this sample of this rank's own; ``has_one``, of shape (ranks,), says which ranks have one."""
        self.mine, self.lent, self._has_one = mine, lent, has_one.astype(bool)


Received = dict[int, deque[Group[T]]]
"""Groups that came from other ranks, by origin, in the order of their steps."""

REREAD_STEPS = 8
"""Steps of a round without images that are read again together after a resume: the first batch waits for these only."""


class Stop(NamedTuple):
    """Some rank failed or left: the status words of all ranks, and this rank's own failure."""

    status: Integers
    failure: Exception | None


class Delivery(Generic[T]):
    """Delivers rounds, numbers the steps of the epoch, and keeps the samples that idle batches are made of."""

    def __init__(
        self,
        *,
        rank: int,
        ranks: int,
        groups: GroupPlanner[T],
        saves: Saves[T],
        footprint: Footprint,
        quota: int | None,
        status: Callable[[Exception | None], int],
        check_damage: Callable[[int], None],
        counter: StepCounter,
    ) -> None:
        self._rank = rank
        self._ranks = ranks
        self._groups = groups
        self._saves = saves
        self._quota = quota
        self._status = status
        self._check_damage = check_damage
        self._fillers: Fillers[T] = Fillers(ranks, footprint)
        self.counter = counter
        self._delivered = 0

    def take_delivered(self) -> int:
        """Steps delivered since the last call."""
        delivered, self._delivered = self._delivered, 0
        return delivered

    def round(
        self, state: RoundState, mine: list[Group[T] | None], counts: Integers, own: Flags
    ) -> Generator[Event, Any, Stop | None]:
        """All steps of a round: what this rank emits, and all ranks' counts of shape (steps, ranks, fields).

        ``own``, of shape (steps, ranks), is True where a rank emits a group of its own.
        """
        begin = 0
        for number, end in enumerate(state.bursts):
            groups, exact = mine[begin:end], counts[begin:end]
            if exact[..., IMAGES].any():
                upcoming = mine[end : state.bursts[number + 1]] if number + 1 < len(state.bursts) else []
                groups, failure = yield from self._decode(groups, upcoming, begin)
                exact, _, stop = yield from self._exact_counts(state, begin, end, groups, failure)
                if stop is not None:
                    return stop
            yield from self._note(groups, exact, own[begin:end])
            yield from self._steps(state, groups, exact, begin)
            begin = end
        return None

    def remaining(self, place: Place) -> Generator[Event, Any, Stop | None]:
        """The steps of a round that were not delivered before a resume; all ranks continue at the same step."""
        state, step = place
        self.counter = StepCounter(step.steps, step.samples_seen)
        self._delivered = 1  # the step that was saved: its round was not a dry one
        first = step.index + 1
        received, stop = yield from self._regain(place, first)
        if stop is not None:
            return stop
        for begin, end, begun in _pieces(state, first):
            groups, failure = self._reread(state, begin, end, received)
            if failure is None:
                groups, failure = yield from self._decode(groups, [], begin)
            exact, own, stop = yield from self._exact_counts(state, begin, end, groups, failure)
            if stop is not None:
                return stop
            if not begun:
                yield from self._note(groups, exact, own)
            yield from self._steps(state, groups, exact, begin)
        return None

    def _regain(self, place: Place, first: int) -> Generator[Event, Any, tuple[Received[T], Stop | None]]:
        """Read again and exchange again what went between ranks: groups from step ``first`` on, and fillers."""
        state, saved = place
        sent = [one for one in state.sent if one.step >= first]
        wanted = [(one.destination, one.samples) for one in sent]
        wanted += [(rank, (one,)) for rank, one in saved.lent.items()]
        own = [] if saved.filler is None or saved.borrowed_from is not None else [(saved.filler,)]
        incoming = Counter(origin for origin in state.origins[first:] if origin not in (IDLE, self._rank))
        if saved.borrowed_from is not None:
            incoming[saved.borrowed_from] += 1
        failure: Exception | None = None
        groups: list[Group[T]] = []
        try:
            groups = self._saves.reread([*(samples for _, samples in wanted), *own])
        except Exception as error:  # noqa: BLE001 - whatever ends this rank's stream, all ranks must be told
            failure = error
        lender = IDLE if saved.borrowed_from is None else saved.borrowed_from
        words = [self._status(failure), saved.filler is not None, bool(wanted or incoming), lender]
        reply = yield Gather(np.array(words, dtype=np.int64), stopping_row)
        if (reply[:, 0] & (FAILED | CLOSING)).any():
            return {}, Stop(reply[:, 0], failure)
        outgoing: dict[int, list[Group[T]]] = {}
        for number, ((destination, _), group) in enumerate(zip(wanted, groups, strict=False)):
            # A lender does not hear when a borrower later keeps a smaller sample of its own and needs this one no more.
            if number < len(sent) or reply[destination, 3] == self._rank:
                outgoing.setdefault(destination, []).append(group)
        received: Received[T] = {}
        if outgoing or incoming:
            answer = yield Exchange(outgoing, dict(incoming), copies=True)
            received = {origin: deque(theirs) for origin, theirs in answer.items()}
        if reply[:, 2].any():
            yield ALL_HAVE_THEIRS
        lent = dict(zip(saved.lent, groups[len(sent) :], strict=False))
        self._fillers.restore(groups[-1] if own else None, lent, reply[:, 1])
        if saved.borrowed_from is not None:
            self._fillers.accept(received[saved.borrowed_from].pop(), saved.borrowed_from)
        return received, None

    def _reread(
        self, state: RoundState, begin: int, end: int, received: Received[T]
    ) -> tuple[list[Group[T] | None], Exception | None]:
        """This rank's groups of some steps: its own read again, and those that came from other ranks."""
        steps = range(begin, end)
        own = [state.mine[step] for step in steps if state.origins[step] == self._rank]
        try:
            groups = iter(self._saves.reread([samples for samples in own if samples is not None]))
        except Exception as error:  # noqa: BLE001 - whatever ends this rank's stream, all ranks must be told
            return [None] * len(steps), error
        origins = [state.origins[step] for step in steps]
        return [
            None if origin == IDLE else next(groups) if origin == self._rank else received[origin].popleft()
            for origin in origins
        ], None

    def _decode(
        self, groups: list[Group[T] | None], upcoming: list[Group[T] | None], first: int
    ) -> Generator[Event, Any, tuple[list[Group[T] | None], Exception | None]]:
        """The groups with images decoded; or none, and what stopped it."""
        decoded = yield Decode(groups, upcoming, first)
        if isinstance(decoded, Exception):
            return [None] * len(groups), decoded
        return decoded, None

    def _exact_counts(
        self, state: RoundState, begin: int, end: int, groups: list[Group[T] | None], failure: Exception | None
    ) -> Generator[Event, Any, tuple[Integers, Flags, Stop | None]]:
        """All ranks' counts of a decoded burst, of shape (steps, ranks, fields), unless some rank failed or left.

        Beside them where each rank emits a group of its own, of shape (steps, ranks).
        """
        steps, fields = end - begin, len(Counts._fields)
        mine = table([group.counts if group is not None else Counts() for group in groups], steps, fields)
        is_own = np.array(state.origins[begin:end], dtype=np.int64) == self._rank
        words = np.array([self._status(failure), self._groups.report().damaged], dtype=np.int64)
        reply = yield Gather(np.concatenate([words, is_own.astype(np.int64), mine.ravel()]), stopping_row)
        stopped = (reply[:, 0] & (FAILED | CLOSING)).any()
        if not stopped:
            self._check_damage(int(reply[:, 1].sum()))
        own = reply[:, 2 : 2 + steps].astype(bool).T
        exact = reply[:, 2 + steps :].reshape(self._ranks, steps, fields).transpose(1, 0, 2)
        return exact, own, Stop(reply[:, 0], failure) if stopped else None

    def _note(self, groups: list[Group[T] | None], counts: Integers, own: Flags) -> Events:
        """Keep a filler, and give one to every rank that idles in these steps, if any has one; alone none idles."""
        if self._ranks == 1:
            return
        self._fillers.note(self._rank, groups, counts, own)
        giver, needy = self._fillers.gifts(counts)
        if self._rank == giver and needy:
            yield Exchange(self._fillers.lend(needy), {}, copies=True)
        elif self._rank in needy:
            received = yield Exchange({}, {giver: 1}, copies=True)
            self._fillers.accept(received[giver][0], giver)
        if needy:
            yield ALL_HAVE_THEIRS

    def _steps(self, state: RoundState, groups: list[Group[T] | None], counts: Integers, first: int) -> Events:
        """The steps of a burst, with totals over all ranks; a step on which no rank emits is skipped by all."""
        for step, (group, of_ranks) in enumerate(zip(groups, counts, strict=True), start=first):
            self._saves.passed(step)
            if not of_ranks[:, SAMPLES].any():
                continue
            self._delivered += 1
            totals = self.counter.enter(of_ranks)
            ends = self._quota is not None and totals.samples_seen >= self._quota
            if ends:
                self.counter = StepCounter()
            filler = None if group is not None else self._fillers.mine
            yield Deliver(group, filler, totals, ends, Place(state, self._step_state(step)))

    def _step_state(self, index: int) -> StepState:
        fillers, held = self._fillers, self._saves.held
        return StepState(
            index=index,
            steps=self.counter.steps,
            samples_seen=self.counter.samples_seen,
            filler=None if fillers.mine is None else held(fillers.mine)[0],
            borrowed_from=fillers.borrowed_from,
            lent={rank: held(group)[0] for rank, group in fillers.lent.items()},
            drops=self._saves.drops(),
        )


def _pieces(state: RoundState, first: int) -> Iterator[tuple[int, int, bool]]:
    """The steps from ``first`` on in pieces: (begin, end, whether their burst had begun before the resume)."""
    start = 0
    for end in state.bursts:
        begun = start < first
        length = end if state.images else REREAD_STEPS
        for begin in range(max(start, first), end, length):
            yield begin, min(begin + length, end), begun
        start = end
