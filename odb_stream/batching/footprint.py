"""What a group costs: padded and packed footprints under a budget, in integers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from odb_stream.config import Budget, Layout


class Size(NamedTuple):
    """What batching knows of a sample: ``length`` in tokens after every stage, and vision ``patches``."""

    length: int
    patches: int = 0


@dataclass(frozen=True)
class Footprint:
    """The cost rule of a run.

    A padded group of n samples costs ``n * c(longest)`` tokens, a packed one ``c(sum)``, where ``c`` rounds up to
    ``multiple``. A group is feasible when its tokens, patches and samples are within the budget; the bound is hard.
    """

    layout: Layout
    budget: Budget
    multiple: int = 1

    def rounded(self, tokens: int) -> int:
        """``tokens`` rounded up to the multiple."""
        return -(-tokens // self.multiple) * self.multiple

    @property
    def room(self) -> int:
        """The most tokens before rounding that one packed row can hold."""
        return self.budget.tokens // self.multiple * self.multiple

    @property
    def most_patches(self) -> int | None:
        """The bound on patches, None without one."""
        return self.budget.patches

    def most_samples(self, longest: int) -> int:
        """How many samples fit into a padded group whose longest has ``longest`` tokens (0 when none does)."""
        count = self.budget.tokens // self.rounded(longest)
        return count if self.budget.samples is None else min(count, self.budget.samples)

    def tokens(self, lengths: Iterable[int]) -> int:
        """Tokens that a group of samples of these lengths takes, padding included."""
        lengths = list(lengths)
        if self.layout == "padded":
            return len(lengths) * self.rounded(max(lengths))
        return self.rounded(sum(lengths))

    def feasible(self, sizes: Iterable[Size]) -> bool:
        """Whether the samples fit into one group under the budget."""
        sizes = list(sizes)
        budget = self.budget
        return (
            self.tokens(size.length for size in sizes) <= budget.tokens
            and (budget.patches is None or sum(size.patches for size in sizes) <= budget.patches)
            and (budget.samples is None or len(sizes) <= budget.samples)
        )

    def oversize(self, size: Size) -> bool:
        """Whether a sample exceeds the budget by itself."""
        return not self.feasible([size])
