"""Messages: what a program asks its driver to do, the headers and causes that ranks gather, and the checks of both."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from odb_stream.batching.cost import Group, Integers
from odb_stream.batching.totals import RankReport, StepTotals, encode_report
from odb_stream.checkpoint.state import DropCounts, HeldGroup, HeldSample, Place, WindowState
from odb_stream.config import FailureBudget
from odb_stream.errors import ConfigError, PeerError, ShardError, StateError
from odb_stream.sample import SampleRef

EXHAUSTED, FAILED, CLOSING = 1, 2, 4
"""Bits of the status word that starts every header."""

DAMAGED, RECEIVED = 4, 5
"""Columns of a header: damaged samples and records so far."""

HEADER_FIELDS = 6
"""Status, number of groups, epoch, round, damaged samples, records; the rank's report follows."""

MESSAGE_BYTES = 2048
"""Room for the cause of a failure, in UTF-8."""

RowChoice = Callable[[Integers], int | None]
"""Several processes may share one rank, and then each brings a row to a gather. Given their rows, of shape
(processes, n), it returns the index of the row that counts for the rank, or None if they may not differ."""


def equal_rows(rows: Integers) -> int | None:
    """Processes that share a rank hold the same data, so they bring the same row."""
    return 0 if (rows == rows[0]).all() else None


def stopping_row(rows: Integers) -> int | None:
    """Rows that begin with a status word may differ where one of the words reports a failure or a rank that leaves.

    Only one process of the rank may have failed or left; the others learn of it from this gather.
    """
    if equal_rows(rows) is not None:
        return 0
    # The largest word, so that a failure or a process that leaves outweighs one that is merely exhausted.
    stopped = int(rows[:, 0].argmax())
    return stopped if rows[stopped, 0] & (FAILED | CLOSING) else None


def cause_row(rows: Integers) -> int | None:
    """The first process that has a cause reports it; a row of zeros holds none (see :func:`pack_cause`)."""
    return int(rows.any(axis=1).argmax())


def pack_header(status: int, planned: int, epoch: int, number: int, report: RankReport) -> Integers:
    """What a rank says of itself at the start of a round."""
    fields = [status, planned, epoch, number, report.damaged, report.received]
    return np.concatenate([np.array(fields, dtype=np.int64), encode_report(report)])


def pack_beginning(epoch: int, resume: Place | None) -> Integers:
    """Where a rank's run begins: epoch, and after a resume the round, its last step delivered, and steps before."""
    if resume is None:
        return np.array([epoch, -1, -1, 0], dtype=np.int64)
    return np.array([epoch, resume.round.number, resume.step.index, resume.step.steps], dtype=np.int64)


def check_beginnings(beginnings: Integers, rank: int) -> None:
    """Raise, on rank ``rank``, unless all ranks begin at the same place: a StateError where their states differ."""
    own = beginnings[rank].tolist()
    for other, theirs in enumerate(beginnings.tolist()):
        if theirs == own:
            continue
        if own[1] < 0 and theirs[1] < 0:
            check_in_step(np.array([[0, 0, epoch, 0] for epoch in beginnings[:, 0].tolist()]), rank, own[0], 0)
        raise StateError(
            f"rank {rank} continues {_words(own)}, but rank {other} {_words(theirs)}: load the states of the same "
            "step of the same run on all ranks"
        )


def _words(beginning: list[int]) -> str:
    epoch, number, place, steps = beginning
    if number < 0:
        return f"at the start of epoch {epoch}"
    return f"after {steps} steps of epoch {epoch} (step {place} of round {number})"


def check_in_step(headers: Integers, rank: int, epoch: int, number: int) -> None:
    """Raise a PeerError, by rank ``rank``, if another rank is in another round or epoch."""
    for other, (their_epoch, their_number) in enumerate(headers[:, 2:4].tolist()):
        if (their_epoch, their_number) != (epoch, number):
            raise PeerError(
                f"rank {other} is in round {their_number} of epoch {their_epoch}, but rank {rank} in round {number} of "
                f"epoch {epoch}: every rank must run the same epochs, one `for` loop each"
            )


def pack_cause(failure: Exception | None) -> Integers:
    """The cause of a rank's failure as a fixed number of integers; zeros without one."""
    message = np.zeros(MESSAGE_BYTES, dtype=np.uint8)
    if failure is not None:
        text = f"{type(failure).__name__}: {failure}".encode()[:MESSAGE_BYTES]
        message[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return message.view(np.int64)


def stop_error(status: Integers, messages: Integers, place: str) -> PeerError:
    """The error of all ranks that did not leave themselves: the lowest rank that failed, else the lowest that left."""
    failed = np.flatnonzero(status & FAILED).tolist()
    if failed:
        cause = messages[failed[0]].tobytes().rstrip(b"\0").decode(errors="replace")
        return PeerError(f"rank {failed[0]} failed ({place}): {cause}")
    left = np.flatnonzero(status & CLOSING).tolist()
    return PeerError(
        f"rank {left[0]} left its loop early ({place}): all ranks must leave at the same step, and a rank that stops "
        "because of an error should raise it"
    )


MOST_DRY_ROUNDS = 32
"""Rounds without a step after which a run with a quota gives up."""


def check_progress(dry_rounds: int, dropped: dict[str, int]) -> None:
    """Raise, on all ranks alike, when round after round of a run with a quota emits nothing: it would never end."""
    if dry_rounds == MOST_DRY_ROUNDS:
        raise ConfigError(
            f"closure is 'quota', but {MOST_DRY_ROUNDS} rounds in a row emitted no sample on any rank (dropped so far: "
            f"{dropped}): their images are broken, the log names the first"
        )


def check_damage(budget: FailureBudget, damaged: int, received: int, place: str) -> None:
    """Raise a ShardError if all ranks together met more damaged samples than the budget allows."""
    allowed = budget.allowed(received)
    if allowed is not None and damaged > allowed:
        raise ShardError(
            f"{place}: {damaged} of {received} records over all ranks are damaged, the failure budget allows {allowed} "
            f"({budget}): see the quarantine file or the log, repair the shards (`odb-stream check`), or raise "
            "failure_budget"
        )


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
    ``first`` is the index of the first step in its round: a sample that broke counts as dropped once the packing stage
    knows that its step has passed (:meth:`Saves.passed`).
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
        """The state of the packing stage, after the planning of this round."""

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
        return DropCounts()

    def held(self, group: Group[T]) -> HeldGroup:
        """As many times ``NOWHERE``."""
        return (NOWHERE,) * len(group.samples)

    def reread(self, groups: Sequence[HeldGroup]) -> list[Group[T]]:
        """Nothing; ValueError where something is asked for."""
        if groups:
            raise ValueError(f"{len(groups)} groups of a run without states cannot be read again")
        return []
