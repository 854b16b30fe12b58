"""What a rank's program asks its driver to do, and what makes its states."""

from collections.abc import Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from odb_stream.batching.groups import Group, Integers
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.batching.totals import StepTotals
from odb_stream.checkpoint.state import DropCounts, HeldGroup, HeldSample, Place, WindowState
from odb_stream.sample import SampleRef

T = TypeVar("T")


StepGroups = list[Group[Any] | None]
"""A rank's groups of consecutive steps, None where it idles."""


class Gather(NamedTuple):
    """Give every rank's integers to every rank. Answered with an int64 array of shape (ranks, len(values)).

    ``choose`` picks the row of a rank that several processes share; a transport needs no knowledge of what rows mean.
    """

    values: Integers
    choose: RowChoice = equal_rows


ALL_HAVE_THEIRS = Gather(np.zeros(1, dtype=np.int64))
"""All ranks gather this after an exchange: no rank continues, and perhaps leaves for good, before all have received."""


class Exchange(NamedTuple):
    """Send groups to other ranks and receive theirs: lists by destination, numbers by origin.

    Answered with the groups received, lists by origin. Only ranks that take part yield it. ``copies`` are not moves:
    fillers, whose giver keeps them, and groups that moved before a resume.
    """

    outgoing: dict[int, list[Group[Any]]]
    incoming: dict[int, int]
    copies: bool = False


class Decode(NamedTuple):
    """Decode the images of this rank's groups in a burst of steps (None where it idles).

    Answered with the groups as they came out: a broken sample has left its group, and a group without a sample left
    is None; or with the exception that stopped it. ``upcoming`` is the burst after, which may be started as well.
    ``first`` is the index of the first step in its round: a sample that broke counts as dropped when the packing stage
    hears that its step has passed (:meth:`Saves.passed`).
    """

    groups: StepGroups
    upcoming: StepGroups
    first: int


class Deliver(NamedTuple):
    """Hand one step to the training loop; the answer is ignored.

    ``group`` is None where this rank idles; ``filler`` is then a group of one sample to make an idle batch of (None
    when no rank ever had one). ``ends_epoch`` marks the step that reaches a quota. ``state`` is where the run continues
    after the step.
    """

    group: Group[Any] | None
    filler: Group[Any] | None
    totals: StepTotals
    ends_epoch: bool
    state: Place


Event = Gather | Exchange | Decode | Deliver
Events = Generator[Event, Any, None]


class Saves(Protocol[T]):
    """What makes a program's states: it names samples, and reads them again by their names."""

    def passed(self, step: int) -> None:
        """The steps of the round up to this one have passed: what broke in them is dropped now."""

    def window_state(self) -> WindowState:
        """Where planning stands."""

    def drops(self) -> DropCounts:
        """What was dropped so far."""

    def held(self, group: Group[T]) -> HeldGroup:
        """By what the samples of a group can be read again."""

    def reread(self, groups: Sequence[HeldGroup]) -> list[Group[T]]:
        """The groups again. Raises whatever reading raises."""


NOWHERE = HeldSample(SampleRef(-1, -1, -1, -1), 0)
"""Stands for a sample that nothing can read again."""


class Unsaved(Generic[T]):
    """For programs that are never resumed, such as simulations: in their states every sample is ``NOWHERE``."""

    def passed(self, step: int) -> None:
        """Nothing breaks."""

    def window_state(self) -> WindowState:
        """The start of the first pass."""
        return WindowState(pass_number=0)

    def drops(self) -> DropCounts:
        """Nothing is dropped."""
        return DropCounts()

    def held(self, group: Group[T]) -> HeldGroup:
        """As many times ``NOWHERE``."""
        return (NOWHERE,) * len(group.samples)

    def reread(self, groups: Sequence[HeldGroup]) -> list[Group[T]]:
        """Nothing; ValueError where something is asked for."""
        if groups:
            raise ValueError(f"{len(groups)} groups of a run without states cannot be read again")
        return []
