"""Chosen sample numbers of one shard as ascending ranges: built, counted and cut."""

from collections.abc import Iterable, Iterator
from itertools import chain, starmap

Ranges = tuple[tuple[int, int], ...]
"""Pairs (start, stop), ascending; at least one number is left out between two of them."""


def joined(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Ascending pairs that do not overlap as ranges: ``(0, 2), (2, 3), (5, 6)`` are ``(0, 3), (5, 6)``."""
    ranges: list[tuple[int, int]] = []
    for start, stop in pairs:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    return tuple(ranges)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The ranges of ascending numbers."""
    return joined((number, number + 1) for number in numbers)


def numbers_in(ranges: Ranges) -> Iterator[int]:
    """All numbers, ascending."""
    return chain.from_iterable(starmap(range, ranges))


def count(ranges: Ranges) -> int:
    """How many numbers the ranges hold."""
    return sum(stop - start for start, stop in ranges)


def since(ranges: Ranges, number: int) -> Ranges:
    """The part of the ranges that is not below ``number``."""
    return tuple((max(start, number), stop) for start, stop in ranges if stop > number)


def cut(ranges: Ranges, first: int, last: int) -> Ranges:
    """The numbers from the ``first``-th to the one before the ``last``-th.

    Example: ``(0, 2), (5, 9)`` from 1 to 4 are ``(1, 2), (5, 7)``.
    """
    chosen = []
    before = 0
    for start, stop in ranges:
        begin, end = max(start, start + first - before), min(stop, start + last - before)
        if begin < end:
            chosen.append((begin, end))
        before += stop - start
    return tuple(chosen)
