"""Chosen sample numbers of one shard as ascending spans: counted, cut, and told apart from those left out."""

from collections.abc import Iterable, Iterator
from itertools import chain, starmap

Spans = tuple[tuple[int, int], ...]
"""Pairs (start, stop), ascending; between two of them at least one number is left out."""


def joined(pairs: Iterable[tuple[int, int]]) -> Spans:
    """Ascending pairs that do not overlap as spans: ``(0, 2), (2, 3), (5, 6)`` are ``(0, 3), (5, 6)``."""
    spans: list[tuple[int, int]] = []
    for start, stop in pairs:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return tuple(spans)


def spans_of(numbers: Iterable[int]) -> Spans:
    """The spans of ascending numbers."""
    return joined((number, number + 1) for number in numbers)


def numbers_in(spans: Spans) -> Iterator[int]:
    """All numbers, ascending."""
    return chain.from_iterable(starmap(range, spans))


def count(spans: Spans) -> int:
    """How many numbers there are."""
    return sum(stop - start for start, stop in spans)


def since(spans: Spans, number: int) -> Spans:
    """Those that are not below ``number``."""
    return tuple((max(start, number), stop) for start, stop in spans if stop > number)


def cut(spans: Spans, first: int, last: int) -> Spans:
    """The ``first``-th number to the one before the ``last``-th.

    Example: ``(0, 2), (5, 9)`` from 1 to 4 are ``(1, 2), (5, 7)``.
    """
    chosen = []
    before = 0
    for start, stop in spans:
        begin, end = max(start, start + first - before), min(stop, start + last - before)
        if begin < end:
            chosen.append((begin, end))
        before += stop - start
    return tuple(chosen)
