"""Every type of state, from a whole run down to one held sample. A state refers to samples and never contains them.

How the types nest, and when each changes::

    RunState                 one rank's state after a step (or at the start of an epoch)
    ├── RunTotals  x 2       what was emitted and dropped so far: by this rank, and by all ranks
    ├── RoundPlace           after a step: where in its round the run is
    │   ├── RoundState       changes once a round: what was planned, dealt and exchanged
    │   │   ├── HeldSample   x n: this rank's steps, groups that it sent, surplus groups
    │   │   └── WindowState  the packing stage after planning: reading position, samples in the window, counts
    │   └── StepState        changes with every step: the place in the round, fillers, drops
    │       └── DropCounts
    ├── AccumulationState    what is left of an accumulation window
    ├── Remaining  x n       the rest of an epoch that other ranks began; None unless the ranks changed
    └── EarlierRanks         what those ranks had done in the epoch
    MergedState              the states of all ranks of one step, for any number of ranks

All types are immutable, so a state that was handed out never changes. :mod:`odb_stream.checkpoint.codec` writes and
reads any of them by their annotations. The module is pure: ``batching/`` plans with these types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from odb_stream.sample import START, ReadingPosition, Remaining, SampleRef

T = TypeVar("T")

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""What the ``json`` module writes."""


class HeldSample(NamedTuple):
    """By what a sample is read and prepared again: its reference, and the pass over the data that it belongs to."""

    ref: SampleRef
    epoch: int


HeldGroup = tuple[HeldSample, ...]
"""The samples of one group."""

RemainingRows = tuple[Remaining, ...]
"""Samples of an epoch that no rank has read yet, or that were read and not emitted."""


class SentGroup(NamedTuple):
    """A group of this rank that another rank emits: at which step of the round, which rank, which samples."""

    step: int
    destination: int
    samples: HeldGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCounts:
    """What a rank dropped so far; ``damaged`` of these samples were broken data. Sources are numbered as in a mix."""

    by_reason: Mapping[str, int] = field(default_factory=dict)
    by_source: Mapping[int, int] = field(default_factory=dict)
    damaged: int = 0

    @classmethod
    def sum(cls, counts: "Iterable[DropCounts]") -> "DropCounts":
        """The counts of several ranks together."""
        counts = list(counts)
        return cls(
            by_reason=added(*(one.by_reason for one in counts)),
            by_source=added(*(one.by_source for one in counts)),
            damaged=sum(one.damaged for one in counts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """The packing stage after a round was planned: where it reads, what its window holds, what it counted.

    ``position`` is the reading position after the last record that arrived in pass ``pass_number``. ``held`` are the
    samples in the window, oldest first, and ``waits`` how many groups were formed since each of them entered.
    ``source_ended`` tells that the pass has no further record, ``received`` counts records, ``admitted_in_pass`` and
    ``solo`` samples that entered the window and those over the budget among them.
    """

    pass_number: int
    position: ReadingPosition = START
    held: HeldGroup = ()
    waits: tuple[int, ...] = ()
    source_ended: bool = False
    received: int = 0
    admitted_in_pass: int = 0
    solo: int = 0
    max_delay: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """A rank's side of a round that was planned, dealt and exchanged; it stays the same for all steps of the round.

    ``mine`` is what this rank emits at each step (None where it idles) and ``origins`` the rank whose group that is;
    ``sent`` are its groups that others emit. ``surplus`` are groups kept for the next round. ``bursts`` are the steps
    before which each burst ends. ``active`` counts the ranks with data after this round, ``last`` is set where no round
    follows, ``dry_rounds`` counts the rounds without a step before it.
    """

    number: int
    active: int
    last: bool
    dry_rounds: int
    images: bool
    bursts: tuple[int, ...]
    mine: tuple[HeldGroup | None, ...]
    origins: tuple[int, ...]
    sent: tuple[SentGroup, ...]
    surplus: tuple[HeldGroup, ...]
    window: WindowState


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """What a step changes: the place in the round, and the counts of the epoch after it.

    ``index`` is the step's index in its round. ``steps`` and ``samples_seen`` count in the epoch (0 after the step that
    ends it). ``filler`` is the sample that this rank makes idle batches of, ``borrowed_from`` the rank that gave it
    (None for its own), and ``lent`` what it gave to others, by rank.
    """

    index: int
    steps: int
    samples_seen: int
    filler: HeldSample | None
    borrowed_from: int | None
    lent: Mapping[int, HeldSample]
    drops: DropCounts


class Place(NamedTuple):
    """Where a rank's program continues: a round, and the last step of it that was delivered."""

    round: RoundState
    step: StepState

    @property
    def held(self) -> list[HeldSample]:
        """What was read and not emitted: the rest of the round's steps, the surplus groups and the window."""
        groups = [*self.round.mine[self.step.index + 1 :], *self.round.surplus]
        return [*(sample for group in groups for sample in group or ()), *self.round.window.held]


@dataclass(frozen=True, slots=True)
class PreEncoded(Generic[T]):
    """A value of type ``kind`` in its written form, so that the many states that share it write it once."""

    kind: type[T]
    plain: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlace:
    """A :class:`Place` as a run keeps it after every step: the round is encoded once, in the background.

    ``moved_in`` and ``moved_out`` are samples that came from and went to other ranks so far.
    """

    round: PreEncoded[RoundState]
    step: StepState
    moved_in: int = 0
    moved_out: int = 0


class AccumulationState(NamedTuple):
    """The rest of an accumulation window: its next step's place, steps left, and supervised tokens of the whole."""

    place: int
    left: int
    supervised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """Totals over steps, of one rank or of all ranks together; the ratios of them are in ``batching/totals.py``.

    ``critical_tokens`` sums the padded tokens of the rank that had the most of them at each step. ``abandoned`` are
    samples of epochs that were ended early, ``solo`` those over the budget that were emitted alone.
    """

    emitted: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    damaged: int = 0
    emitted_by_source: Mapping[int, int] = field(default_factory=dict)
    dropped_by_source: Mapping[int, int] = field(default_factory=dict)
    abandoned: int = 0
    solo: int = 0
    steps: int = 0
    idle_steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    supervised_tokens: int = 0
    critical_tokens: int = 0
    max_delay: int = 0

    def plus(self, more: "RunTotals") -> "RunTotals":
        """Both together; of ``max_delay`` the larger."""
        return RunTotals(
            emitted=self.emitted + more.emitted,
            dropped=added(self.dropped, more.dropped),
            damaged=self.damaged + more.damaged,
            emitted_by_source=added(self.emitted_by_source, more.emitted_by_source),
            dropped_by_source=added(self.dropped_by_source, more.dropped_by_source),
            abandoned=self.abandoned + more.abandoned,
            solo=self.solo + more.solo,
            steps=self.steps + more.steps,
            idle_steps=self.idle_steps + more.idle_steps,
            tokens=self.tokens + more.tokens,
            padded_tokens=self.padded_tokens + more.padded_tokens,
            supervised_tokens=self.supervised_tokens + more.supervised_tokens,
            critical_tokens=self.critical_tokens + more.critical_tokens,
            max_delay=max(self.max_delay, more.max_delay),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRanks:
    """What was done in an epoch before its ranks changed: steps, samples over all ranks, and what was dropped.

    After a merge one rank takes over the drops of all: the sum over ranks stays true.
    """

    steps: int = 0
    samples_seen: int = 0
    drops: DropCounts = DropCounts()
    received: int = 0
    solo: int = 0
    max_delay: int = 0

    def window(self, pass_number: int) -> WindowState:
        """Where packing begins, with these counts."""
        return WindowState(
            pass_number=pass_number, received=self.received, solo=self.solo, max_delay=self.max_delay
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What a state belongs to: the settings that decide batches, by name, as text, and the data."""

    world_size: int
    settings: Mapping[str, str]
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One rank's state: all that a loader needs to continue exactly.

    ``epoch`` is the number of the next step's epoch, ``pass_number`` that of the pass that makes it (the same unless a
    quota repeats the data). ``place`` is None at the start of an epoch, or of the rest of one, ``remaining``, after its
    ranks changed; ``earlier`` then says what was done before. ``taken`` counts samples of this rank that the training
    loop took from the pass.
    """

    epoch: int
    pass_number: int
    mine: RunTotals = RunTotals()
    everyone: RunTotals = RunTotals()
    place: RoundPlace | None = None
    accumulation: AccumulationState | None = None
    taken: int = 0
    remaining: PreEncoded[RemainingRows] | None = None
    earlier: EarlierRanks | None = None

    @property
    def steps(self) -> int:
        """Steps of the epoch that were made before."""
        return self.place.step.steps if self.place is not None else (self.earlier or EarlierRanks()).steps

    @property
    def samples_seen(self) -> int:
        """Samples of the epoch that all ranks emitted before."""
        return self.place.step.samples_seen if self.place is not None else (self.earlier or EarlierRanks()).samples_seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank's state with the run and the rank that it belongs to: what ``Loader.state_dict()`` writes."""

    identity: RunIdentity
    rank: int
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedState:
    """The states that all ranks saved after one step, as one state for any number of ranks.

    ``places`` are those of the old ranks, in their order. ``earlier`` counts what all of them did in the epoch.
    """

    identity: RunIdentity
    epoch: int
    pass_number: int
    remaining: PreEncoded[RemainingRows] | None
    places: tuple[RoundPlace | None, ...]
    earlier: EarlierRanks
    everyone: RunTotals


K = TypeVar("K")


def added(*tables: Mapping[K, int]) -> dict[K, int]:
    """Counts by key, summed."""
    sums: dict[K, int] = {}
    for table in tables:
        for key, number in table.items():
            sums[key] = sums.get(key, 0) + number
    return sums
