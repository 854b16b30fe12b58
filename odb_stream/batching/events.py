"""What a rank's program asks of the outside, and what it needs from its packing stage."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from odb_stream.batching.account import Account
from odb_stream.batching.groups import Group, Integers
from odb_stream.batching.ledger import StepTotals
from odb_stream.batching.messages import RowChoice, equal_rows
from odb_stream.checkpoint.state import Place, References

T = TypeVar("T")


class Gather(NamedTuple):
    """Give every rank's integers to every rank. Answered with an int64 array of shape (ranks, len(values)).

    ``choose`` picks the row of a rank that several processes share; a transport needs no knowledge of what rows mean.
    """

    values: Integers
    choose: RowChoice = equal_rows


ALL_HAVE_THEIRS = Gather(np.zeros(1, dtype=np.int64))
"""Made by all ranks after an exchange: none goes on, and perhaps leaves for good, before all have what is theirs."""


class Exchange(NamedTuple):
    """Send groups to other ranks and receive theirs: lists by destination, numbers by origin.

    Answered with the groups received, lists by origin. Only ranks that take part yield it. ``copies`` are no moves:
    stand-ins, whose giver keeps them, and what moved before a resume.
    """

    outgoing: dict[int, list[Group[Any]]]
    incoming: dict[int, int]
    copies: bool = False


class Decode(NamedTuple):
    """Decode the images of this rank's groups in a burst of steps (None where it idles).

    Answered with the groups as they came out: what proved broken has left its group, and a group without a sample left
    is None; or with the exception that stopped it. ``upcoming`` is the burst after, which may be begun as well.
    ``first`` is the number of the first step in its round: what broke in a step counts as dropped once the packing
    stage is told that the step has passed.
    """

    groups: list[Group[Any] | None]
    upcoming: list[Group[Any] | None]
    first: int


class Deliver(NamedTuple):
    """Hand one step to the training loop; the answer is ignored.

    ``group`` is None where this rank idles; ``stand_in`` is then a group of one sample to make an idle batch of (None
    when no rank ever had one). ``ends_epoch`` marks the step at which a quota is reached. ``state`` says where the run
    stands after the step.
    """

    group: Group[Any] | None
    stand_in: Group[Any] | None
    totals: StepTotals
    ends_epoch: bool
    state: Place


Event = Gather | Exchange | Decode | Deliver
Run = Generator[Event, Any, None]


class Packer(Protocol[T]):
    """One rank's packing stage as the program uses it."""

    @property
    def exhausted(self) -> bool:
        """Whether no further group will come."""

    @property
    def source_ended(self) -> bool:
        """Whether nothing more will come than what is held: it is planned to its end in one round."""

    def account(self) -> Account:
        """What was dropped so far, by reason, and how long samples waited."""

    def begin_round(self, number: int) -> int:
        """Set the window of a round; returns the number of groups to plan in it."""

    def next_group(self) -> Group[T] | None:
        """The next group, or None when there is none. Raises whatever the stream raised."""

    def passed(self, step: int) -> None:
        """Told when the steps of the round up to this one have passed: what broke in them is dropped now."""

    def snapshot(self) -> Any:
        """Where planning stands, immutable and small: references, never payloads."""

    def progress(self) -> Any:
        """What was dropped so far, as an immutable value."""

    def references(self, group: Group[T]) -> References:
        """By what the samples of a group can be read again."""

    def reread(self, groups: Sequence[References]) -> list[Group[T]]:
        """The groups again. Raises whatever reading raises."""
