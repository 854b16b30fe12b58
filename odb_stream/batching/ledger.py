"""The account of an epoch: token totals of each step over all ranks, the loss scale, and samples seen so far."""

from dataclasses import dataclass

from odb_stream.batching.groups import IMAGES, PADDED, SAMPLES, SUPERVISED, TOKENS, Integers


@dataclass(frozen=True, slots=True)
class StepTotals:
    """One step over all ranks; ``largest_padded`` is the padded tokens of the rank that has most of them."""

    step: int
    samples: int
    tokens: int
    padded_tokens: int
    largest_padded: int
    supervised: int
    images: int
    idle_ranks: int
    samples_seen: int


class Ledger:
    """Numbers the steps of one epoch and keeps its running totals; the same on every rank."""

    def __init__(self, steps: int = 0, samples_seen: int = 0) -> None:
        self.steps = steps
        self.samples_seen = samples_seen

    def enter(self, counts: Integers) -> StepTotals:
        """Enter the next step: counts of shape (ranks, fields), zeros where a rank idles."""
        totals = counts.sum(axis=0).tolist()
        self.samples_seen += totals[SAMPLES]
        entered = StepTotals(
            step=self.steps,
            samples=totals[SAMPLES],
            tokens=totals[TOKENS],
            padded_tokens=totals[PADDED],
            largest_padded=int(counts[:, PADDED].max()),
            supervised=totals[SUPERVISED],
            images=totals[IMAGES],
            idle_ranks=int((counts[:, SAMPLES] == 0).sum()),
            samples_seen=self.samples_seen,
        )
        self.steps += 1
        return entered


def loss_scale(supervised: int, total_supervised: int, world_size: int) -> float:
    """The factor that turns a rank's token-mean loss into its share of the token mean over all ranks.

    Data-parallel training averages gradients over ranks, hence the world size: the mean over ranks of
    ``loss * supervised * R / total`` is the sum of token losses over ``total``. 0 when nothing is supervised. With
    accumulation ``total_supervised`` is that of the whole window, and the micro-steps are summed, not averaged.
    """
    return supervised * world_size / total_supervised if total_supervised else 0.0
