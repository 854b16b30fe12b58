"""Stand-ins: the sample that a rank makes an idle batch of, and who gives one to a rank that never had any."""

from typing import Any, Generic, TypeVar

import numpy as np

from odb_stream.batching.footprint import Footprint
from odb_stream.batching.groups import PATCHES, SAMPLES, TOKENS, Group, Integers

T = TypeVar("T")


class StandIns(Generic[T]):
    """Keeps this rank's smallest sample so far, and which ranks have one: the same knowledge on every rank.

    Samples over the budget are never taken.
    """

    def __init__(self, ranks: int, footprint: Footprint) -> None:
        self._footprint = footprint
        self._has_one = np.zeros(ranks, dtype=bool)
        self.mine: Group[T] | None = None

    def note(self, groups: list[Group[T] | None], counts: Integers) -> None:
        """Take note of steps to come: what this rank emits, and all ranks' counts of shape (steps, ranks, fields)."""
        for group in groups:
            if group is None or not self._footprint.feasible(group.sizes):
                continue
            place = group.smallest()
            if self.mine is None or group.sizes[place].length < self.mine.sizes[0].length:
                self.mine = group.part((place,), self._footprint)
        # Several samples in one group are within the budget; one may have been sent alone because it is not.
        over = counts[..., TOKENS] > self._footprint.room
        if self._footprint.most_patches is not None:
            over |= counts[..., PATCHES] > self._footprint.most_patches
        fits = (counts[..., SAMPLES] > 1) | ((counts[..., SAMPLES] == 1) & ~over)
        self._has_one |= fits.any(axis=0)

    def gifts(self, counts: Integers) -> tuple[int, list[int]]:
        """(giver, ranks that idle in these steps and have no sample); the ranks count as served from now on."""
        needy: list[int] = np.flatnonzero((counts[..., SAMPLES] == 0).any(axis=0) & ~self._has_one).tolist()
        if not self._has_one.any():
            return 0, []
        giver = int(np.argmax(self._has_one))
        self._has_one[needy] = True
        return giver, needy

    def accept(self, groups: list[Group[Any]]) -> None:
        """Keep the sample that another rank gave."""
        self.mine = groups[0]
