"""The schedule of a mix: the stated bound over every prefix, exact periods, and the count of turns of an epoch."""

from fractions import Fraction
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mix_data import bound

from odb_stream.sources.mix.schedule import next_turn, turns_until, whole_weights

WEIGHTS = st.lists(st.integers(1, 60) | st.sampled_from([1, 1, 1000]), min_size=1, max_size=8)


def play(weights, number):
    """The turns of each source after each of the first ``number`` turns."""
    turns = [0] * len(weights)
    for _ in range(number):
        turns[next_turn(weights, turns)] += 1
        yield tuple(turns)


def test_the_example_of_the_page():
    turns = list(play((3, 2, 1), 12))
    sources = [
        next(i for i in range(3) if now[i] != before[i]) for before, now in zip([(0,) * 3, *turns], turns, strict=False)
    ]
    assert sources == [0, 1, 0, 2, 1, 0] * 2


@given(WEIGHTS, st.integers(1, 400))
@example([1, 1, 1, 1, 1, 1, 1, 1], 40)
@example([1, 1, 1, 1, 4], 40)  # largest remainder first is further off than allowed here
@example([97, 1, 1, 1], 300)
def test_no_source_is_ever_further_from_its_due_than_the_bound(weights, number):
    total, allowed = sum(weights), bound(len(weights))
    assert allowed < 1
    for played, turns in enumerate(play(weights, number), start=1):
        assert sum(turns) == played
        for weight, had in zip(weights, turns, strict=True):
            assert abs(had - Fraction(played * weight, total)) <= allowed


@given(WEIGHTS)
def test_a_period_gives_each_source_its_weight_and_then_all_begins_anew(weights):
    total = sum(weights)
    turns = list(play(weights, min(2 * total, 1500)))
    if len(turns) == 2 * total:
        assert turns[total - 1] == tuple(weights)
        again = [tuple(a - b for a, b in zip(now, weights, strict=True)) for now in turns[total:]]
        assert again == turns[:total]


@given(WEIGHTS, st.data())
def test_sources_of_weight_zero_take_no_turn_and_change_nothing_for_the_others(weights, data):
    places = data.draw(st.lists(st.integers(0, len(weights)), max_size=3))
    wider = list(weights)
    for place in places:
        wider.insert(place, 0)
    kept = [i for i, weight in enumerate(wider) if weight]
    for plain, wide in zip(play(weights, 60), play(wider, 60), strict=True):
        assert tuple(wide[i] for i in kept) == plain
        assert sum(wide) == sum(plain)


@given(WEIGHTS, st.data())
def test_the_turns_of_an_epoch_are_counted_without_playing_them_all(weights, data):
    goals = data.draw(st.lists(st.integers(1, 90), min_size=len(weights), max_size=len(weights)))
    turns, played = [0] * len(weights), 0
    for played in count():
        if all(had >= goal for had, goal in zip(turns, goals, strict=True)) or played > 5000:
            break
        turns[next_turn(weights, turns)] += 1
    if played <= 5000:
        assert turns_until(weights, goals, most=5000) == played


def test_the_count_of_turns_is_given_up_beyond_the_limit_only():
    assert turns_until((3, 2, 1), (10**12, 1, 1), most=6) == (10**12 - 1) // 3 * 6 + 1
    assert turns_until((10**9, 10**9 + 1), (10**6, 1), most=100) is None
    assert turns_until((2, 0, 1), (2, 0, 1), most=10) == 3


@pytest.mark.parametrize(
    ("given_weights", "whole"),
    [
        ((0.7, 0.3), (7, 3)),
        ((2, 4), (1, 2)),
        ((1 / 3, 1 / 3, 1 / 3), (1, 1, 1)),
        ((1, 0.1, 0.25), (20, 2, 5)),
        ((1e-3, 5e3), (1, 5_000_000)),
    ],
)
def test_weights_become_the_smallest_integers(given_weights, whole):
    assert whole_weights(given_weights) == whole
