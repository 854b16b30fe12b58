"""The packing stage of one rank: a window of measured samples that leave it as groups around the oldest one.

Every group holds the *anchor*, the oldest sample in the window, so a sample is planned within as many groups as the
window has places. The rest of the group is what fits the anchor best: the run of similar lengths with the most real
tokens (padded), or the samples that fill the row (packed). The window is refilled after every group, so no group is
small only because a boundary was reached.

A trace by hand, padded, budget 12, window 4, arrivals 5 2 3 6 4 4 and more: the window holds 5 2 3 6, the anchor is 5.
Sorted: 2 3 5 6. Runs that contain 5 and fit: [3 5] is 2 x 5 = 10, [5 6] is 2 x 6 = 12, [5] is 5. Most real tokens:
[5 6] with 11 of 12. Refilled, the window holds 2 3 4 4 and the anchor is 2: [2 3 4] is 3 x 4 = 12 with 9 real tokens,
[2 3 4 4] would be 16. So the second group is 2 3 4.

**The final division.** While samples keep arriving, the others wait for better company. At the end nothing arrives:
formed one by one, the first groups would take what fits best and the last ones the leftovers. So the whole window is
divided at once, in the padded layout with the least padding, in the packed layout into rows of similar size.

A trace by hand, padded, budget 12, lengths 1 1 4 6: the fewest groups are [1 1 4] and [6], 12 + 6 = 18 tokens for 12
real ones. [1 1] [4] [6] takes 2 + 4 + 6 = 12. Another group is worth it where it saves more than a twelfth of the
budget: here more than 1.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from odb_stream.batching.cost import Footprint, Group, Size
from odb_stream.batching.totals import RankReport

FIRST_WINDOW = 256
FIRST_LOOKAHEAD = 2


def ramp(limit: int, first: int, round_number: int) -> int:
    """The value of a setting in a round: ``first`` doubled each round, up to ``limit``.

    Window and lookahead start small so that the first batch comes early. They grow with the round's number alone: the
    schedule must not depend on timing.
    """
    return min(limit, first << min(round_number, 62))


class Window:
    """Samples that wait for their group, by ticket (any increasing integer that the caller hands out).

    Cost: O(log W) comparisons a sample plus the members of each group; planning does not slow down with W.
    """

    def __init__(self, footprint: Footprint, max_delay: int = 0) -> None:
        self._footprint = footprint
        self._sizes: dict[int, Size] = {}
        self._entered: dict[int, int] = {}
        self._arrivals: deque[int] = deque()
        self._by_length: list[tuple[int, int]] = []
        self._groups_formed = 0
        self.max_delay = max_delay
        """The most groups formed between a sample's entry and its own group, that one included."""

    def __len__(self) -> int:
        return len(self._sizes)

    def tickets(self) -> list[int]:
        """What the window holds, oldest first."""
        return list(self._sizes)

    def admit(self, ticket: int, size: Size) -> None:
        """Take a sample in. A sample that exceeds the budget by itself leaves alone, as a group of its own."""
        self._sizes[ticket] = size
        self._entered[ticket] = self._groups_formed
        self._arrivals.append(ticket)
        if not self._footprint.oversize(size):  # an oversize sample never joins another sample's group
            insort(self._by_length, (size.length, ticket))

    def waits(self) -> list[int]:
        """How many groups were formed since each sample entered, oldest sample first."""
        return [self._groups_formed - entered for entered in self._entered.values()]

    def restore(self, waits: list[int]) -> None:
        """Set how long the samples that were just admitted again have waited, as :meth:`waits` gave it."""
        self._entered = {ticket: self._groups_formed - wait for ticket, wait in zip(self._entered, waits, strict=True)}

    def form_group(self) -> list[int]:
        """Take one group out: tickets in arrival order, the anchor first.

        Raises:
            IndexError: the window is empty.
        """
        anchor = self._oldest()
        if self._footprint.oversize(self._sizes[anchor]):
            members = [anchor]
        elif self._footprint.layout == "padded":
            members = self._padded_run(anchor)
        else:
            members = self._packed_fill(anchor)
        return self._leave(members)

    def divide(self) -> list[list[int]]:
        """The whole window divided into groups, when no further sample will enter; nothing leaves the window yet.

        The groups are in the order of their oldest members, so no sample waits longer than :meth:`form_group` allows.
        """
        order, sizes = self._by_length, self._sizes
        groups = final_groups([sizes[ticket] for _, ticket in order], self._footprint)
        whole = [sorted(order[place][1] for place in group) for group in groups]
        whole += [[ticket] for ticket, size in sizes.items() if self._footprint.oversize(size)]
        return sorted(whole)

    def take(self, members: list[int]) -> list[int]:
        """Take one of the groups of :meth:`divide` out."""
        for ticket in members:
            entry = (self._sizes[ticket].length, ticket)
            place = bisect_left(self._by_length, entry)
            if self._by_length[place : place + 1] == [entry]:
                del self._by_length[place]
        return self._leave(members)

    def _leave(self, members: list[int]) -> list[int]:
        """Remove a group's samples; returns their tickets in arrival order."""
        self._groups_formed += 1
        for ticket in members:
            del self._sizes[ticket]
            delay = self._groups_formed - self._entered.pop(ticket)
            self.max_delay = max(self.max_delay, delay)
        members.sort()
        return members

    def _oldest(self) -> int:
        # Samples leave from anywhere in the queue; it drops them only when they reach its front, which is O(1) each.
        while self._arrivals[0] not in self._sizes:
            self._arrivals.popleft()
        return self._arrivals[0]

    def _padded_run(self, anchor: int) -> list[int]:
        """The feasible contiguous run in length order that contains the anchor and has the most real tokens.

        For a run that ends at place ``end``, the members are the longest that fit under that sample's length; as
        ``end`` moves up, the start moves up too, so one pass with two pointers sees every candidate.
        """
        order, sizes, footprint = self._by_length, self._sizes, self._footprint
        most_patches = footprint.most_patches
        place = bisect_left(order, (sizes[anchor].length, anchor))
        start = max(0, place + 1 - footprint.most_samples(order[place][0]))
        real = sum(length for length, _ in order[start:place])
        patches = sum(sizes[ticket].patches for _, ticket in order[start:place]) if most_patches is not None else 0
        best, best_start, best_end = -1, place, place
        for end in range(place, len(order)):
            length, ticket = order[end]
            real += length
            patches += sizes[ticket].patches
            first = end + 1 - footprint.most_samples(length)
            while start < first or (most_patches is not None and patches > most_patches and start <= place):
                real -= order[start][0]
                patches -= sizes[order[start][1]].patches
                start += 1
            if start > place:
                break  # longer samples would push the anchor out of the run
            if real > best:
                best, best_start, best_end = real, start, end
        run = order[best_start : best_end + 1]
        del order[best_start : best_end + 1]
        return [ticket for _, ticket in run]

    def _packed_fill(self, anchor: int) -> list[int]:
        """The anchor, then repeatedly the longest sample that still fits (the oldest of equal ones)."""
        order, sizes, budget = self._by_length, self._sizes, self._footprint.budget
        members: list[int] = []
        room = self._footprint.room
        patches = self._footprint.most_patches
        place = bisect_left(order, (sizes[anchor].length, anchor))
        while place >= 0:
            length, ticket = order.pop(place)
            members.append(ticket)
            room -= length
            if patches is not None:
                patches -= sizes[ticket].patches
            if len(members) == budget.samples:
                break
            place = self._longest_within(room, patches)
        return members

    def _longest_within(self, room: int, patches: int | None) -> int:
        """The place of the longest sample that fits, the oldest of equal ones; -1 when none does."""
        order, sizes = self._by_length, self._sizes
        place = bisect_right(order, (room + 1,)) - 1
        if patches is not None:
            while place >= 0 and sizes[order[place][1]].patches > patches:
                place -= 1
        if place < 0:
            return -1
        oldest = bisect_left(order, (order[place][0],))
        if patches is not None:
            while sizes[order[oldest][1]].patches > patches:
                oldest += 1
        return oldest


T = TypeVar("T")

Draw = Callable[[], tuple[int, Size] | None]
"""Gives the next measured sample of the stream as (ticket, size), with increasing tickets; None at the end."""


class Planner:
    """Forms groups from a stream; both the real packing stage and the simulation run this class.

    A round is the unit of planning: its window and its number of groups follow from the round's number (the ramp).
    """

    def __init__(self, footprint: Footprint, draw: Draw, *, window: int, lookahead: int, max_delay: int = 0) -> None:
        self.window = Window(footprint, max_delay)
        self._draw = draw
        self._most_samples = window
        self._most_groups = lookahead
        self.source_ended = False
        """Whether the stream has given its last sample."""
        self._limit = 0
        self._divided: list[list[int]] = []
        self.lookahead = 0
        """Groups to plan in this round."""

    @property
    def exhausted(self) -> bool:
        """Whether the source has ended and the window is empty: no further group will come."""
        return self.source_ended and not len(self.window)

    def begin_round(self, number: int) -> None:
        """Set this round's window and lookahead."""
        self._limit = ramp(self._most_samples, FIRST_WINDOW, number)
        self.lookahead = ramp(self._most_groups, FIRST_LOOKAHEAD, number)

    def restore(self, held: list[tuple[int, Size]], waits: list[int], *, source_ended: bool) -> None:
        """Start with these samples in the window, oldest first; see :meth:`Window.restore`."""
        for ticket, size in held:
            self.window.admit(ticket, size)
        self.window.restore(waits)
        self.source_ended = source_ended

    def form_group(self) -> list[int] | None:
        """The next group as tickets in arrival order, or None when there is none.

        The window is refilled before and after, so that ``exhausted`` is known as soon as it is true: a rank that finds
        out a round later would keep all others for one more round. Once the stream has ended, the window is divided as
        a whole.
        """
        self._refill()
        if not len(self.window):
            return None
        if self.source_ended:
            self._divided = self._divided or self.window.divide()
            return self.window.take(self._divided.pop(0))
        group = self.window.form_group()
        self._refill()
        return group

    def _refill(self) -> None:
        while not self.source_ended and len(self.window) < self._limit:
            drawn = self._draw()
            if drawn is None:
                self.source_ended = True
                return
            self.window.admit(*drawn)


class GroupPlanner(ABC, Generic[T]):
    """A packing stage: a planner that holds the samples behind its tickets. It gives a program its groups.

    ``max_delay`` is the largest delay before a resume: reports count it from the start.
    """

    def __init__(self, footprint: Footprint, *, window: int, lookahead: int, max_delay: int = 0) -> None:
        self.footprint = footprint
        self.planner = Planner(footprint, self.draw, window=window, lookahead=lookahead, max_delay=max_delay)

    @abstractmethod
    def draw(self) -> tuple[int, Size] | None:
        """The next sample of the stream, as (ticket, size); None at the end."""

    @abstractmethod
    def take(self, tickets: list[int]) -> Group[T]:
        """Give up the samples of these tickets, as a group."""

    @property
    def exhausted(self) -> bool:
        """Whether no further group will come."""
        return self.planner.exhausted

    @property
    def source_ended(self) -> bool:
        """Whether the source has ended: what is held is all there is, and one round plans it to its end."""
        return self.planner.source_ended

    def report(self) -> RankReport:
        """What was dropped so far, by reason, and how long samples waited."""
        return RankReport({}, 0, self.planner.window.max_delay)

    def begin_round(self, number: int) -> int:
        """Set the window of a round; returns the number of groups to plan in it."""
        self.planner.begin_round(number)
        return self.planner.lookahead

    def next_group(self) -> Group[T] | None:
        """The next group, or None when there is none. Raises whatever the stream raised."""
        tickets = self.planner.form_group()
        return None if tickets is None else self.take(tickets)


GROUP_SHARE = 12
"""Another group must save 1 / GROUP_SHARE of the budget: a step has a cost of its own, whatever its size."""


def final_groups(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """Feasible groups of all samples, as places in ``sizes``, which rise by length; none of them is oversize."""
    if footprint.layout == "padded":
        return _least_padding(sizes, footprint)
    return _like_rows(sizes, footprint)


def _least_padding(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """The cut of the sorted samples into runs of least cost: padded tokens and a constant a group.

    ``best[end]`` is the least cost of the first ``end`` samples. A sample is tried with as many before it as a group of
    its length holds.
    """
    constant = footprint.budget.tokens // GROUP_SHARE
    most_patches = footprint.most_patches
    best, cut = [0], [0]
    for end, (length, *_) in enumerate(sizes, start=1):
        width = footprint.rounded(length)
        patches = 0
        least, least_start = -1, end - 1
        for start in range(end - 1, max(-1, end - 1 - footprint.most_samples(length)), -1):
            patches += sizes[start].patches
            if most_patches is not None and patches > most_patches:
                break
            cost = best[start] + (end - start) * width
            if least < 0 or cost <= least:
                least, least_start = cost, start
        best.append(least + constant)
        cut.append(least_start)
    groups, end = [], len(sizes)
    while end:
        groups.append(list(range(cut[end], end)))
        end = cut[end]
    return groups


def _like_rows(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """As few rows as filling one after the other needs, but of similar size: longest first, into the emptiest row."""
    filled: list[_Row] = []
    for place, size in reversed(list(enumerate(sizes))):
        first = next((row for row in filled if row.takes(size, footprint)), None)
        if first is None:
            filled.append(first := _Row())
        first.add(place, size)
    level = [_Row() for _ in filled]
    for place, size in reversed(list(enumerate(sizes))):
        emptiest = min((row for row in level if row.takes(size, footprint)), key=lambda row: row.tokens, default=None)
        if emptiest is None:  # some samples only fit into so few rows when these are filled up one by one
            return [row.places for row in filled]
        emptiest.add(place, size)
    return [row.places for row in level]


class _Row:
    """A packed row that is being filled."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.tokens = 0
        self.patches = 0

    def takes(self, size: Size, footprint: Footprint) -> bool:
        """Whether a further sample fits."""
        most_patches, most_samples = footprint.most_patches, footprint.budget.samples
        return (
            self.tokens + size.length <= footprint.room
            and (most_patches is None or self.patches + size.patches <= most_patches)
            and (most_samples is None or len(self.places) < most_samples)
        )

    def add(self, place: int, size: Size) -> None:
        self.places.append(place)
        self.tokens += size.length
        self.patches += size.patches
