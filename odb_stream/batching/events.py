"""What a rank's program asks of the outside, and what it needs from its packing stage."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from odb_stream.batching.account import Account
from odb_stream.batching.groups import Group, Integers
from odb_stream.batching.ledger import StepTotals

T = TypeVar("T")


class Gather(NamedTuple):
    """Give every rank's integers to every rank. Answered with an int64 array of shape (ranks, len(values))."""

    values: Integers


ALL_HAVE_THEIRS = Gather(np.zeros(1, dtype=np.int64))
"""Made by all ranks after an exchange: none goes on, and perhaps leaves for good, before all have what is theirs."""


class Exchange(NamedTuple):
    """Send groups to other ranks and receive theirs: lists by destination, numbers by origin.

    Answered with the groups received, lists by origin. Only ranks that take part yield it. Stand-ins are copies: their
    giver keeps them.
    """

    outgoing: dict[int, list[Group[Any]]]
    incoming: dict[int, int]
    stand_ins: bool = False


class Decode(NamedTuple):
    """Decode the images of this rank's groups in a burst of steps (None where it idles).

    Answered with the groups as they came out: what proved broken has left its group, and a group without a sample left
    is None; or with the exception that stopped it. ``upcoming`` is the burst after, which may be begun as well.
    """

    groups: list[Group[Any] | None]
    upcoming: list[Group[Any] | None]


@dataclass(frozen=True, slots=True)
class RoundState:
    """Where a rank stood when a round began: what a resume needs to plan the round again.

    ``active`` counts ranks with data as of the gather before, ``surplus`` are groups planned and not yet emitted, and
    ``packer`` is the packing stage's own snapshot.
    """

    round: int
    active: int
    steps: int
    samples_seen: int
    surplus: tuple[Group[Any], ...]
    packer: Any


class Deliver(NamedTuple):
    """Hand one step to the training loop; the answer is ignored.

    ``group`` is None where this rank idles; ``stand_in`` is then a group of one sample to make an idle batch of (None
    when no rank ever had one). ``ends_epoch`` marks the step at which a quota is reached. ``state`` and ``place`` (the
    number of the step in its round) say where the run stands.
    """

    group: Group[Any] | None
    stand_in: Group[Any] | None
    totals: StepTotals
    ends_epoch: bool
    state: RoundState
    place: int


Event = Gather | Exchange | Decode | Deliver
Run = Generator[Event, Any, None]


class Packer(Protocol[T]):
    """One rank's packing stage as the program uses it."""

    @property
    def exhausted(self) -> bool:
        """Whether no further group will come."""

    def account(self) -> Account:
        """What was dropped so far, by reason, and how long samples waited."""

    def begin_round(self, number: int) -> int:
        """Set the window of a round; returns the number of groups to plan in it."""

    def next_group(self) -> Group[T] | None:
        """The next group, or None when there is none. Raises whatever the stream raised."""

    def snapshot(self) -> Any:
        """Where the stage stands, immutable and small: references, never payloads."""
