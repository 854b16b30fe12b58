"""Draws that are the same on every machine: all are built on ``random.Random.random()``, which Python guarantees."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices, named by a string: the same name gives the same choices."""

    def __init__(self, name: str) -> None:
        self._random = random.Random(name)

    def below(self, size: int) -> int:
        """An integer from 0 to ``size - 1``."""
        return int(self._random.random() * size)

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """One of the items, each as often as its weight says."""
        place = self.below(sum(weight for _, weight in items))
        for item, weight in items:
            if place < weight:
                return item
            place -= weight
        raise AssertionError("the weights are positive integers")

    def several(self, items: Sequence[T], count: int) -> list[T]:
        """``count`` different items in random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def skewed(self, low: int, high: int) -> int:
        """A size from ``low`` to ``high``, mostly small, with a long tail."""
        return round(low * (high / low) ** (self._random.random() ** 2.5))
