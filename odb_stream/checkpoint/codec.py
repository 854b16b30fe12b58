"""Writes any type of state as plain data and reads it back, by its annotations: one codec for all of them.

What an annotation becomes in JSON:

========================  =======================================================================================
``int``, ``bool``, ``str``  itself; anything else in its place is refused
``X | None``              ``null``, or what X becomes
``A | B`` (classes)       ``{"A": ...}``, by the class's name
a dataclass, a NamedTuple an object with every field
``tuple[X, ...]``         a column: integers as a list, or compressed text where they are many; NamedTuples as one
                          column a field; tuples as their sizes and one column of all their items; others as a list
``Mapping[str, X]``       an object
``Mapping[X, Y]``         a column of keys and a column of values
``PreEncoded[X]``            what X becomes, which was written before
========================  =======================================================================================

A state holds thousands of references, and neighbours in a column share most of their digits: as compressed differences
a sample takes about 10 characters. A general library would write them row by row, four times as long.
"""

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import chain, islice
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from odb_stream.checkpoint.state import Json, PreEncoded
from odb_stream.errors import StateError

T = TypeVar("T")

LONGEST_LIST = 16
"""Integers that are written as they are; more are compressed."""

UNIONS = (UnionType, Union)
"""``X | None`` is the one or the other, depending on X."""

_NO_GROUP = -1
"""Size of a missing tuple in a column of tuples."""


def encode(value: object, kind: object) -> Json:
    """A value of type ``kind`` as plain data."""
    if value is None or kind in (int, bool, str):
        return cast(Json, value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in UNIONS:
        inner = _not_none(arguments)
        return encode(value, inner[0]) if len(inner) == 1 else {type(value).__name__: encode(value, type(value))}
    if origin is PreEncoded:
        return cast(PreEncoded[object], value).plain
    if origin is tuple:
        return _column(cast(Sequence[object], value), arguments[0])
    if origin is Mapping:
        table = cast(Mapping[Any, object], value)
        if arguments[0] is str:
            return {key: encode(one, arguments[1]) for key, one in table.items()}
        return {"keys": _column(list(table), arguments[0]), "values": _column(list(table.values()), arguments[1])}
    return {name: encode(getattr(value, name), inner) for name, inner in _fields(cast(type, kind)).items()}


def decode(kind: type[T], plain: Json) -> T:
    """The value that :func:`encode` wrote. Raises StateError for anything else."""
    try:
        return cast(T, _decoded(kind, plain))
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error) as error:
        raise StateError(
            f"the state is damaged ({type(error).__name__}: {error}): load an unchanged copy of the file"
        ) from error


def _decoded(kind: object, plain: Json) -> object:
    if kind in (int, bool, str):
        if type(plain) is not kind:
            raise TypeError(f"{plain!r:.80} is not of type {cast(type, kind).__name__}")
        return plain
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in UNIONS:
        if plain is None and NoneType in arguments:
            return None
        inner = _not_none(arguments)
        if len(inner) == 1:
            return _decoded(inner[0], plain)
        ((name, content),) = _object(plain).items()
        return _decoded({one.__name__: one for one in inner}[name], content)
    if origin is PreEncoded:
        _decoded(arguments[0], plain)  # so that damage is found when a state is loaded, not in the middle of a run
        return PreEncoded(arguments[0], plain)
    if origin is tuple:
        return tuple(_items(plain, arguments[0]))
    if origin is Mapping:
        if arguments[0] is str:
            return {key: _decoded(arguments[1], one) for key, one in _object(plain).items()}
        columns = _object(plain)
        keys, values = _items(columns["keys"], arguments[0]), _items(columns["values"], arguments[1])
        return dict(zip(keys, values, strict=True))
    given, known = _object(plain), _fields(cast(type, kind))
    if given.keys() != known.keys():
        raise KeyError(f"{cast(type, kind).__name__} has the fields {sorted(known)}, not {sorted(given)}")
    return cast(type, kind)(**{name: _decoded(inner, given[name]) for name, inner in known.items()})


def _column(values: Sequence[object], kind: object) -> Json:
    """Many values of one type."""
    if kind is int:
        return _packed(cast(Sequence[int], values))
    if _is_row(kind):
        names = _fields(cast(type, kind))
        columns = zip(*cast(Sequence[tuple[object, ...]], values), strict=True) if values else ((),) * len(names)
        return {name: _column(column, inner) for (name, inner), column in zip(names.items(), columns, strict=True)}
    item = _tuple_item(kind)
    if item is not None:
        tuples = cast(Sequence[tuple[object, ...] | None], values)
        sizes = [_NO_GROUP if one is None else len(one) for one in tuples]
        return {"sizes": _packed(sizes), "items": _column(list(chain.from_iterable(one or () for one in tuples)), item)}
    return [encode(value, kind) for value in values]


def _items(plain: Json, kind: object) -> Sequence[object]:
    """What :func:`_column` wrote."""
    if kind is int:
        return _unpacked(plain)
    if _is_row(kind):
        names, columns = _fields(cast(type, kind)), _object(plain)
        rows = zip(*(_items(columns[name], inner) for name, inner in names.items()), strict=True)
        return [cast(type, kind)(*row) for row in rows]
    item = _tuple_item(kind)
    if item is not None:
        columns = _object(plain)
        items = iter(_items(columns["items"], item))
        tuples = [None if size == _NO_GROUP else _taken(items, size) for size in _unpacked(columns["sizes"])]
        if next(items, None) is not None:
            raise ValueError("a column has more items than its sizes say")
        return tuples
    if not isinstance(plain, list):
        raise TypeError(f"{plain!r:.80} is not a list")
    return [_decoded(kind, one) for one in plain]


def _taken(items: Iterator[object], size: int) -> tuple[object, ...]:
    taken = tuple(islice(items, size))
    if len(taken) < size:
        raise ValueError("a column has fewer items than its sizes say")
    return taken


def _packed(values: Sequence[int]) -> Json:
    if len(values) <= LONGEST_LIST:
        return [int(value) for value in values]
    table = np.array(values, dtype=np.int64)
    return base64.b64encode(zlib.compress(np.diff(table, prepend=0).astype("<i8").tobytes(), 1)).decode()


def _unpacked(plain: Json) -> list[int]:
    if isinstance(plain, list):
        return [cast(int, _decoded(int, one)) for one in plain]
    if not isinstance(plain, str):
        raise TypeError(f"{plain!r:.80} is not a column of integers")
    differences = np.frombuffer(zlib.decompress(base64.b64decode(plain, validate=True)), dtype="<i8")
    integers: list[int] = np.cumsum(differences).tolist()
    return integers


def _object(plain: Json) -> dict[str, Json]:
    if not isinstance(plain, dict):
        raise TypeError(f"{plain!r:.80} is not an object")
    return plain


def _not_none(arguments: Sequence[Any]) -> list[Any]:
    return [one for one in arguments if one is not NoneType]


def _is_row(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _tuple_item(kind: object) -> object | None:
    """The item type of ``tuple[X, ...]`` or ``tuple[X, ...] | None``; None for other types."""
    if get_origin(kind) in UNIONS:
        (kind, *_) = _not_none(get_args(kind))
    return get_args(kind)[0] if get_origin(kind) is tuple else None


@cache
def _fields(kind: type) -> dict[str, object]:
    """The annotations of a dataclass or NamedTuple, in the order of its fields."""
    if not (is_dataclass(kind) or _is_row(kind)):
        raise TypeError(f"{kind!r} is not a type of state")
    return get_type_hints(kind)
