"""The codec: every type of state comes back as it was, takes few characters, and damage of any kind is a StateError."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import odb_stream as odb
from odb_stream.checkpoint.codec import LONGEST_LIST, UNIONS, decode, encode
from odb_stream.checkpoint.fit import seal, unseal
from odb_stream.checkpoint.reshard import decoded
from odb_stream.checkpoint.state import HeldSample, MergedState, PreEncoded, RankState, RoundState, WindowState
from odb_stream.sample import MixPosition, Position, SampleRef

numbers = st.integers(-1, 2**62)
words = st.text(max_size=5)


def values(kind: Any) -> st.SearchStrategy:
    """Values of a type of state, by its annotations; more integers in a tuple than fit a list, and fewer."""
    simple = {int: numbers, bool: st.booleans(), str: words, NoneType: st.none()}
    if kind in simple:
        return simple[kind]
    inner = get_args(kind)
    if get_origin(kind) in UNIONS:
        return st.one_of([values(one) for one in inner])
    if get_origin(kind) is PreEncoded:
        return values(inner[0]).map(lambda one: PreEncoded(inner[0], encode(one, inner[0])))
    if get_origin(kind) is tuple:
        return st.lists(values(inner[0]), max_size=3 * LONGEST_LIST if inner[0] is int else 4).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    return st.builds(kind, **{name: values(one) for name, one in get_type_hints(kind).items()})


@given(values(RankState) | values(MergedState))
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
