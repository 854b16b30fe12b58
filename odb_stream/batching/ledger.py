"""The account of an epoch: token totals of each step over all ranks, the loss scale, and samples seen so far."""

from dataclasses import dataclass
from typing import NamedTuple


class Tally(NamedTuple):
    """What one rank puts into one step: exact counts, all zero when it idles."""

    samples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    supervised: int = 0


@dataclass(frozen=True, slots=True)
class StepTotals:
    """One step over all ranks, as the ledger entered it."""

    step: int
    samples: int
    tokens: int
    supervised: int
    largest_padded: int
    samples_seen: int


class Ledger:
    """Numbers the steps of one epoch and keeps its running totals; the same on every rank."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples_seen = 0

    def enter(self, tallies: list[Tally]) -> StepTotals:
        """Enter the next step, one tally a rank."""
        self.samples_seen += sum(tally.samples for tally in tallies)
        totals = StepTotals(
            step=self.steps,
            samples=sum(tally.samples for tally in tallies),
            tokens=sum(tally.tokens for tally in tallies),
            supervised=sum(tally.supervised for tally in tallies),
            largest_padded=max(tally.padded_tokens for tally in tallies),
            samples_seen=self.samples_seen,
        )
        self.steps += 1
        return totals


def loss_scale(supervised: int, total_supervised: int, world_size: int) -> float:
    """The factor that turns a rank's token-mean loss into its share of the token mean over all ranks.

    Data-parallel training averages gradients over ranks, hence the world size: the mean over ranks of
    ``loss * supervised * R / total`` is the sum of token losses over ``total``. 0 when nothing is supervised.
    """
    return supervised * world_size / total_supervised if total_supervised else 0.0
