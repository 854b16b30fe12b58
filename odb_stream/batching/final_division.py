"""The final division: when the source has ended, a window is divided into groups as a whole.

While samples keep arriving, a group is formed around the oldest one and the others wait for better company. At the end
nothing arrives: formed one by one, the first groups would take what fits best and the last ones the leftovers. So the
whole window is divided at once, in the padded layout with the least padding, in the packed layout into rows of similar
size.

A trace by hand, padded, budget 12, lengths 1 1 4 6: the fewest groups are [1 1 4] and [6], 12 + 6 = 18 tokens for 12
real ones. [1 1] [4] [6] takes 2 + 4 + 6 = 12. Another group is worth it where it saves more than a twelfth of the
budget: here more than 1.
"""

from collections.abc import Sequence

from odb_stream.batching.cost import Footprint, Size

GROUP_SHARE = 12
"""Another group must save 1 / GROUP_SHARE of the budget: a step has a cost of its own, whatever its size."""


def final_groups(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """Feasible groups of all samples, as places in ``sizes``, which rise by length; none of them is oversize."""
    if footprint.layout == "padded":
        return _least_padding(sizes, footprint)
    return _like_rows(sizes, footprint)


def _least_padding(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """The cut of the sorted samples into runs of least cost: padded tokens and a constant a group.

    ``best[end]`` is the least cost of the first ``end`` samples. A sample is tried with as many before it as a group of
    its length holds.
    """
    constant = footprint.budget.tokens // GROUP_SHARE
    most_patches = footprint.most_patches
    best, cut = [0], [0]
    for end, (length, *_) in enumerate(sizes, start=1):
        width = footprint.rounded(length)
        patches = 0
        least, least_start = -1, end - 1
        for start in range(end - 1, max(-1, end - 1 - footprint.most_samples(length)), -1):
            patches += sizes[start].patches
            if most_patches is not None and patches > most_patches:
                break
            cost = best[start] + (end - start) * width
            if least < 0 or cost <= least:
                least, least_start = cost, start
        best.append(least + constant)
        cut.append(least_start)
    groups, end = [], len(sizes)
    while end:
        groups.append(list(range(cut[end], end)))
        end = cut[end]
    return groups


def _like_rows(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """As few rows as filling one after the other needs, but of similar size: longest first, into the emptiest row."""
    filled = _filled_rows(sizes, footprint)
    level = _levelled_rows(sizes, footprint, len(filled))
    return filled if level is None else level


def _filled_rows(sizes: Sequence[Size], footprint: Footprint) -> list[list[int]]:
    """Longest first, into the first row with room."""
    rows: list[_Row] = []
    for place in reversed(range(len(sizes))):
        row = next((row for row in rows if row.takes(sizes[place], footprint)), None)
        if row is None:
            rows.append(row := _Row())
        row.add(place, sizes[place])
    return [row.places for row in rows]


def _levelled_rows(sizes: Sequence[Size], footprint: Footprint, count: int) -> list[list[int]] | None:
    """``count`` rows, each sample in the row with the fewest tokens that has room; None where a sample fits nowhere."""
    rows = [_Row() for _ in range(count)]
    for place in reversed(range(len(sizes))):
        row = min((row for row in rows if row.takes(sizes[place], footprint)), key=lambda row: row.tokens, default=None)
        if row is None:
            return None
        row.add(place, sizes[place])
    return [row.places for row in rows]


class _Row:
    """A packed row that is being filled."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.tokens = 0
        self.patches = 0

    def takes(self, size: Size, footprint: Footprint) -> bool:
        """Whether a further sample fits."""
        most_patches, most_samples = footprint.most_patches, footprint.budget.samples
        return (
            self.tokens + size.length <= footprint.room
            and (most_patches is None or self.patches + size.patches <= most_patches)
            and (most_samples is None or len(self.places) < most_samples)
        )

    def add(self, place: int, size: Size) -> None:
        self.places.append(place)
        self.tokens += size.length
        self.patches += size.patches
