"""Whose turn it is in a mix: exact integer rules that keep every source close to its share after any number of turns.

A source of weight w out of W is due ``n * w / W`` of the first n turns. Always taking the source that is furthest
behind keeps two sources within one turn of that, but not many sources. The rule here is Tijdeman's for the chairman
assignment problem, and no rule can guarantee more: each of k sources stays within ``1 - 1 / (2k - 2)`` turns of its
due. A source may have a turn once it would otherwise be ``1 / (2k - 2)`` behind; of those sources, the one that would
be too far behind first gets it. For the weights 3, 2 and 1::

    turn      1  2  3  4  5  6  |  repeated every W turns
    source    0  1  0  2  1  0

Example: after four turns source 0, which is due 2, had 2; source 1, due 4/3, had 1; source 2, due 2/3, had 1.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def whole_weights(weights: Sequence[int | float]) -> tuple[int, ...]:
    """The smallest integers in the proportion of these positive numbers.

    A float counts as the decimal number that it prints as, so 0.7 and 0.3 are exactly 7 and 3.
    """
    exact = [Fraction(repr(weight)) if isinstance(weight, float) else Fraction(weight) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * common) for weight in exact]
    divisor = math.gcd(*whole)
    return tuple(weight // divisor for weight in whole)


def next_turn(weights: Sequence[int], turns: Sequence[int]) -> int:
    """The source whose turn is next, given the ``turns`` that each had so far by this rule.

    Sources of weight 0 take no turns, and must have had none. At least one weight must be positive.
    """
    total = sum(weights)
    steps = 2 * sum(map(bool, weights)) - 2
    if not steps:
        return next(source for source, weight in enumerate(weights) if weight)
    number = sum(turns) + 1
    best, best_slack = -1, 0
    for source, weight in enumerate(weights):
        # Integers, in units of 1 / (steps * total): how far behind it would be without this turn. Floats would round,
        # and ranks or restarts could then disagree on a turn.
        if not weight or steps * (weight * number - turns[source] * total) < total:
            continue
        slack = steps * turns[source] + steps - 1
        # The turn by which it must have its next one, slack * total / (steps * weight), is compared without dividing.
        if best < 0 or slack * weights[best] < best_slack * weight:
            best, best_slack = source, slack
    return best


def turns_until(weights: Sequence[int], goals: Sequence[int], *, most: int) -> int | None:
    """After how many turns each source has had at least its goal, for goals of at least 1 where the weight is not 0.

    The schedule repeats itself every ``sum(weights)`` turns, in which each source has as many as its weight, so at most
    one such period is played through. None if that takes more than ``most`` turns.
    """
    period = sum(weights)
    left = {
        source: (goal - 1) % weight + 1
        for source, (goal, weight) in enumerate(zip(goals, weights, strict=True))
        if weight
    }
    last = 0
    turns = [0] * len(weights)
    for number in range(1, most + 1):
        source = next_turn(weights, turns)
        turns[source] += 1
        if turns[source] == left.get(source):
            whole_periods = (goals[source] - 1) // weights[source]
            last = max(last, whole_periods * period + number)
            del left[source]
            if not left:
                return last
    return None if left else last
