"""One rank's planning: keeps the window full from a stream of sizes and forms the groups of each round."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.groups import Group
from odb_stream.batching.totals import RankReport
from odb_stream.batching.window import FIRST_LOOKAHEAD, FIRST_WINDOW, Window, ramp

T = TypeVar("T")

Draw = Callable[[], tuple[int, Size] | None]
"""Gives the next measured sample of the stream as (ticket, size), with increasing tickets; None at the end."""


class Planner:
    """Forms groups from a stream; both the real packing stage and the simulation run this class.

    A round is the unit of planning: its window and its number of groups follow from the round's number (the ramp).
    """

    def __init__(
        self, footprint: Footprint, draw: Draw, *, window: int, lookahead: int, max_delay: int = 0
    ) -> None:
        self.window = Window(footprint, max_delay)
        self._draw = draw
        self._most_samples = window
        self._most_groups = lookahead
        self._source_ended = False
        self._limit = 0
        self._divided: list[list[int]] = []
        self.lookahead = 0
        """Groups to plan in this round."""

    @property
    def exhausted(self) -> bool:
        """Whether the source has ended and the window is empty: no further group will come."""
        return self._source_ended and not len(self.window)

    def begin_round(self, number: int) -> None:
        """Set this round's window and lookahead."""
        self._limit = ramp(self._most_samples, FIRST_WINDOW, number)
        self.lookahead = ramp(self._most_groups, FIRST_LOOKAHEAD, number)

    @property
    def source_ended(self) -> bool:
        """Whether the stream has given its last sample."""
        return self._source_ended

    def restore(self, held: list[tuple[int, Size]], waits: list[int], *, source_ended: bool) -> None:
        """Start with these samples in the window, oldest first; see :meth:`Window.restore`."""
        for ticket, size in held:
            self.window.admit(ticket, size)
        self.window.restore(waits)
        self._source_ended = source_ended

    def form_group(self) -> list[int] | None:
        """The next group as tickets in arrival order, or None when there is none.

        The window is refilled before and after, so that ``exhausted`` is known as soon as it is true: a rank that finds
        out a round later would keep all others for one more round. Once the stream has ended, the window is divided as
        a whole.
        """
        self._refill()
        if not len(self.window):
            return None
        if self._source_ended:
            self._divided = self._divided or self.window.divide()
            return self.window.take(self._divided.pop(0))
        group = self.window.form_group()
        self._refill()
        return group

    def _refill(self) -> None:
        while not self._source_ended and len(self.window) < self._limit:
            drawn = self._draw()
            if drawn is None:
                self._source_ended = True
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
