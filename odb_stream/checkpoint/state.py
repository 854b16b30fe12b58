"""Where a run stands: what is fixed while the steps of a round are delivered, and what changes with every step.

Together they are all that a resume needs. Samples appear as references only, in whatever form the packing stage can
read them again by; a state holds no payload.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

References = tuple[Any, ...]
"""The samples of one group."""


class Sent(NamedTuple):
    """A group that another rank emits: at which step of the round, which rank, which samples."""

    step: int
    destination: int
    samples: References


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """A rank's side of a round that was planned, dealt and exchanged.

    ``mine`` is what this rank emits at each step (None where it idles) and ``origins`` whose group that is; ``sent``
    are its groups that others emit. ``surplus`` are groups kept for the next round. ``bursts`` are the steps before
    which each burst ends. ``active`` counts the ranks with data after this round, ``last`` is set where no round
    follows, ``dry_rounds`` counts rounds without a step before it. ``packer`` is the packing stage's own snapshot after
    planning.
    """

    round: int
    active: int
    last: bool
    dry_rounds: int
    images: bool
    bursts: tuple[int, ...]
    mine: tuple[References | None, ...]
    origins: tuple[int, ...]
    sent: tuple[Sent, ...]
    surplus: tuple[References, ...]
    packer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step changes: its place in the round, and the run's books after it.

    ``steps`` and ``samples_seen`` count in the epoch (0 after the step that ends it). ``stand_in`` is the sample that
    this rank makes idle batches of, ``borrowed_from`` the rank that gave it (None for its own), and ``lent`` what it
    gave to others, as (rank, sample). ``packer`` is the packing stage's own part: what was dropped.
    """

    place: int
    steps: int
    samples_seen: int
    stand_in: Any
    borrowed_from: int | None
    lent: tuple[tuple[int, Any], ...]
    packer: Any


class Place(NamedTuple):
    """Where to go on: a round and the last step of it that was delivered."""

    round: RoundState
    progress: Progress
