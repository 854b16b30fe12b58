"""The packing stage of one rank: a window of measured samples that leave it as groups around the oldest one.

Every group holds the *anchor*, the oldest sample in the window, so a sample is planned within as many groups as the
window has places. The rest of the group is what fits the anchor best: the run of similar lengths with the most real
tokens (padded), or the samples that fill the row (packed). The window is refilled after every group, so no group is
small only because a boundary was reached.

At the end of the stream the window is divided as a whole, by ``odb_stream/batching/final_division.py``.

A trace by hand, padded, budget 12, window 4, arrivals 5 2 3 6 4 4 and more: the window holds 5 2 3 6, the anchor is 5.
Sorted: 2 3 5 6. Runs that contain 5 and fit: [3 5] is 2 x 5 = 10, [5 6] is 2 x 6 = 12, [5] is 5. Most real tokens:
[5 6] with 11 of 12. Refilled, the window holds 2 3 4 4 and the anchor is 2: [2 3 4] is 3 x 4 = 12 with 9 real tokens,
[2 3 4 4] would be 16. So the second group is 2 3 4.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.final_division import final_groups

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
        if not self._footprint.oversize(size):  # an oversize sample is no candidate for other samples' groups
            insort(self._by_length, (size.length, ticket))

    def waits(self) -> list[int]:
        """How many groups were formed since each sample entered, oldest sample first."""
        return [self._groups_formed - entered for entered in self._entered.values()]

    def restore(self, waits: list[int]) -> None:
        """Set how long the samples that were just admitted again have waited, as :meth:`waits` gave it."""
        self._entered = {
            ticket: self._groups_formed - wait for ticket, wait in zip(self._entered, waits, strict=True)
        }

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
