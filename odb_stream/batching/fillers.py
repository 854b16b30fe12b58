"""Fillers: the sample that a rank makes an idle batch of, and which rank gives one to a rank that never had any."""

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from odb_stream.batching.cost import Footprint
from odb_stream.batching.groups import PATCHES, SAMPLES, TOKENS, Group, Integers

T = TypeVar("T")
Flags = npt.NDArray[np.bool_]


class Fillers(Generic[T]):
    """Keeps the smallest sample that this rank emitted of its own, and which ranks have one: all know the same.

    Samples over the budget are never taken, nor those of groups that came from other ranks: after a resume only their
    owner could read them again.
    """

    def __init__(self, ranks: int, footprint: Footprint) -> None:
        self._footprint = footprint
        self._has_one = np.zeros(ranks, dtype=bool)
        self.mine: Group[T] | None = None
        self.borrowed_from: int | None = None
        """The rank that gave ``mine``; None for a sample of this rank's own."""
        self.lent: dict[int, Group[T]] = {}
        """What this rank gave to others, by rank."""

    def note(self, rank: int, groups: list[Group[T] | None], counts: Integers, own: Flags) -> None:
        """Take note of steps to come: what this rank emits, and all ranks' counts of shape (steps, ranks, fields).

        ``own``, of shape (steps, ranks), is True where a rank emits a group of its own.
        """
        for group, is_own in zip(groups, own[:, rank], strict=True):
            if group is None or not is_own or not self._footprint.feasible(group.sizes):
                continue
            place = group.smallest()
            if self.mine is None or group.sizes[place].length < self.mine.sizes[0].length:
                self.mine, self.borrowed_from = group.part((place,), self._footprint), None
        # Counts are all that is known of other ranks' groups. Several samples in one group are within the budget; a
        # single one may have been sent alone because it is not.
        over = counts[..., TOKENS] > self._footprint.room
        if self._footprint.most_patches is not None:
            over |= counts[..., PATCHES] > self._footprint.most_patches
        fits = (counts[..., SAMPLES] > 1) | ((counts[..., SAMPLES] == 1) & ~over)
        self._has_one |= (fits & own).any(axis=0)

    def gifts(self, counts: Integers) -> tuple[int, list[int]]:
        """(giver, ranks that idle in these steps and have no sample); from now on the ranks count as having one."""
        needy: list[int] = np.flatnonzero((counts[..., SAMPLES] == 0).any(axis=0) & ~self._has_one).tolist()
        if not self._has_one.any():
            return 0, []
        giver = int(np.argmax(self._has_one))
        self._has_one[needy] = True
        return giver, needy

    def lend(self, ranks: list[int]) -> dict[int, list[Group[T]]]:
        """What this rank gives these ranks."""
        if self.mine is None:
            return {}
        self.lent |= dict.fromkeys(ranks, self.mine)
        return {rank: [self.mine] for rank in ranks}

    def accept(self, group: Group[Any], giver: int) -> None:
        """Keep the sample that another rank gave."""
        self.mine, self.borrowed_from = group, giver

    def restore(self, mine: Group[T] | None, lent: dict[int, Group[T]], has_one: Integers) -> None:
        """Continue with this sample of this rank's own; ``has_one``, of shape (ranks,), says which ranks have one."""
        self.mine, self.lent, self._has_one = mine, lent, has_one.astype(bool)
