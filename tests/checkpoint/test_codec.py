"""The codec: every type of state comes back as it was, takes few characters, and damage of any kind is a StateError."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import odb_stream as odb
from odb_stream.checkpoint.codec import LONGEST_LIST, decode, encode
from odb_stream.checkpoint.fit import seal, unseal
from odb_stream.checkpoint.reshard import decoded
from odb_stream.checkpoint.state import (
    AccumulationState,
    DropCounts,
    EarlierRanks,
    HeldSample,
    MergedState,
    PreEncoded,
    RankState,
    RemainingRows,
    RoundPlace,
    RoundState,
    RunIdentity,
    RunState,
    RunTotals,
    SentGroup,
    StepState,
    WindowState,
)
from odb_stream.sample import MixPosition, PartPosition, Position, Remaining, SampleRef

numbers = st.integers(-1, 2**62)
counts = st.dictionaries(st.text(max_size=5), numbers, max_size=4)
by_source = st.dictionaries(numbers, numbers, max_size=4)
samples = st.builds(HeldSample, st.builds(SampleRef, numbers, numbers, numbers, numbers), numbers)
groups = st.lists(samples, max_size=5).map(tuple)
positions = st.builds(Position, numbers, numbers, numbers, numbers)
mixes = st.builds(MixPosition, st.lists(st.builds(PartPosition, numbers, positions, numbers), max_size=3).map(tuple))


def tuples(items: st.SearchStrategy, most: int = 3 * LONGEST_LIST) -> st.SearchStrategy:
    """Some of them, more than fit a list and fewer."""
    return st.lists(items, max_size=most).map(tuple)


drops = st.builds(DropCounts, by_reason=counts, by_source=by_source, damaged=numbers)
windows = st.builds(
    WindowState, pass_number=numbers, position=positions | mixes, held=groups, waits=tuples(numbers), received=numbers
)
rounds = st.builds(
    RoundState,
    number=numbers, active=numbers, last=st.booleans(), dry_rounds=numbers, images=st.booleans(),
    bursts=tuples(numbers, 3), mine=tuples(st.none() | groups, 4), origins=tuples(numbers),
    sent=tuples(st.builds(SentGroup, numbers, numbers, groups), 3), surplus=tuples(groups, 3), window=windows,
)  # fmt: skip
steps = st.builds(
    StepState,
    index=numbers, steps=numbers, samples_seen=numbers, filler=st.none() | samples, borrowed_from=st.none() | numbers,
    lent=st.dictionaries(numbers, samples, max_size=3), drops=drops,
)  # fmt: skip
places = st.builds(
    RoundPlace,
    round=rounds.map(lambda one: PreEncoded(RoundState, encode(one, RoundState))), step=steps, moved_in=numbers,
)  # fmt: skip
rows = tuples(st.builds(Remaining, numbers, numbers, numbers, numbers, numbers)).map(
    lambda one: PreEncoded(RemainingRows, encode(one, RemainingRows))
)
totals = st.builds(RunTotals, emitted=numbers, dropped=counts, dropped_by_source=by_source, max_delay=numbers)
earlier = st.builds(EarlierRanks, steps=numbers, drops=drops)
identities = st.builds(
    RunIdentity, world_size=numbers, settings=st.dictionaries(st.text(max_size=5), st.text(max_size=5)), data=st.text()
)
runs = st.builds(
    RunState,
    epoch=numbers, pass_number=numbers, mine=totals, everyone=totals, place=st.none() | places, taken=numbers,
    accumulation=st.none() | st.builds(AccumulationState, numbers, numbers, numbers),
    remaining=st.none() | rows, earlier=st.none() | earlier,
)  # fmt: skip
states = st.builds(RankState, identity=identities, rank=numbers, state=runs) | st.builds(
    MergedState,
    identity=identities, epoch=numbers, pass_number=numbers, remaining=st.none() | rows,
    places=tuples(st.none() | places, 3), earlier=earlier, everyone=totals,
)  # fmt: skip


@given(states)
def test_a_state_comes_back_as_it_was_through_json(state) -> None:
    sealed = json.loads(json.dumps(seal(state)))
    again = unseal(sealed)
    assert again == state
    assert seal(again) == sealed
    if isinstance(state, RankState) and state.state.place is not None:
        assert encode(decoded(again.state.place.round), RoundState) == state.state.place.round.plain


def test_a_held_sample_takes_about_ten_characters() -> None:
    """Samples of a window, as a shuffled shard gives them. Fails with: columns that are not packed."""
    held = tuple(HeldSample(SampleRef(0, 3, (7 * i) % 1024, 512 * ((7 * i) % 1024)), 0) for i in range(1024))
    window = WindowState(pass_number=0, held=held, waits=tuple(range(1024)))
    assert len(json.dumps(encode(window, WindowState))) < 10 * len(held)


class Row(NamedTuple):
    number: int
    word: str | None


@dataclass(frozen=True)
class Record:
    """One field of every kind."""

    number: int
    flag: bool
    rows: tuple[Row, ...]
    missing: tuple[tuple[int, ...] | None, ...]
    table: Mapping[int, Row]
    other: Position | MixPosition | None


WHOLE = Record(1, True, (Row(1, None), Row(2, "b")), ((1, 2), None, ()), {7: Row(3, "c")}, Position(1, 2, 3, 4))
PLAIN = encode(WHOLE, Record)


def test_every_kind_of_field_comes_back() -> None:
    assert decode(Record, json.loads(json.dumps(PLAIN))) == WHOLE


@pytest.mark.parametrize(
    "damage",
    [
        {"number": "1"},
        {"number": True},
        {"flag": 1},
        {"rows": {"number": [1, 2], "word": [None]}},
        {"rows": {"number": "no base64", "word": []}},
        {"missing": {"sizes": [2, -1, 0], "items": [1]}},
        {"missing": {"sizes": [1, -1, 0], "items": [1, 2]}},
        {"missing": [[1, 2]]},
        {"table": {"keys": [7], "values": []}},
        {"other": {"Nowhere": {}}},
        {"other": {"Position": {"segment": 1}}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_damage_is_a_state_error(damage: dict) -> None:
    with pytest.raises(odb.StateError, match="damaged"):
        decode(Record, {**PLAIN, **damage})
    for name in PLAIN:
        with pytest.raises(odb.StateError, match=name):
            decode(Record, {key: value for key, value in PLAIN.items() if key != name})
