"""From the files of a shard to its samples: neighbouring files of one key; each sample is whole or lost."""

import functools
import importlib
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

from odb_stream.errors import ShardError
from odb_stream.sample import Drop
from odb_stream.shards.tar.faults import Fault, OnFault, damaged
from odb_stream.shards.tar.headers import ByteCursor, Entry

HELD_BACK = 256
"""Samples that wait before they are handed on, so that a second part of one of their keys is seen in time."""
PICKLES = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})
"""Extensions of formats that run code when they are loaded: refused."""
# A hidden file is left out, unless its extension says that it is a member without a key: that would lose data silently.
_PAYLOADS = frozenset({"json", "txt", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"})
_METADATA = re.compile(r"__[^/]*__($|/)")
# Bytes that are not UTF-8 become lone surrogates when a header is decoded.
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")


# ---- From a file name to a key and an extension ----


class Member(NamedTuple):
    """The sample that a file belongs to, and its extension there; ``fault`` says why it cannot be read."""

    key: str
    extension: str
    fault: Fault | None = None


@functools.cache
def _webdataset() -> ModuleType:
    # Loaded on first use: webdataset imports torch, which a worker process that only names this package must not load.
    return importlib.import_module("webdataset.tariterators")


def split_name(name: str) -> tuple[str, str] | None:
    """Key and lower-cased extension of a member's name by webdataset's rule; None unless it has both."""
    key, extension = _webdataset().base_plus_ext(name)
    # For "folder/.json" the rule gives the key "folder/", which is a folder and not a key.
    return (key, extension.lower()) if key and extension and not key.endswith("/") else None


def is_left_out(name: str) -> bool:
    """Whether a file is not a member by its name: ``__meta__`` files and hidden files, as in webdataset."""
    if _METADATA.match(name):
        return True
    base = name.rpartition("/")[2]
    if not base.startswith("."):
        return False
    return base.startswith("._") or base.rpartition(".")[2].lower() not in _PAYLOADS


def member_of(entry: Entry) -> Member | Fault | None:
    """A file of a shard as a member; None if it is left out, a fault if its sample cannot be determined."""
    name = entry.name
    if is_left_out(name):
        return None
    if not name.isascii() and _NOT_UTF8.search(name):
        return Fault("bad_name", entry.offset, f"the name of member {name!r} is not UTF-8", "name files in UTF-8")
    parts = split_name(name)
    if parts is None:
        return Fault("bad_name", entry.offset, f"member {name!r} has no key or no extension", "name it KEY.EXT")
    key, extension = parts
    place = f"member {name!r} of key {key!r}"
    fault = None
    if extension.rpartition(".")[2] in PICKLES:
        way_out = "store json, txt or images"
        fault = Fault("refused_member", entry.offset, f"{place} is a pickle, which may run code", way_out)
    elif extension.startswith("__"):
        fault = Fault("bad_name", entry.offset, f"{place} has a reserved extension", "rename it")
    return Member(key, extension, fault)


# ---- From files to samples ----


@dataclass(frozen=True, slots=True)
class TarSample:
    """One sample of a shard: its members by lower-cased extension, its number, and the bytes it spans.

    ``offset`` is the byte of the first tar header (an extended header counts), ``end`` the byte after the last
    member's padding, from which reading can continue.
    """

    key: str
    members: dict[str, bytes]
    index: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class LostSample:
    """A sample that cannot be read whole: what was found of it, and why it is dropped.

    Its key is empty if it is not known. It has a number of its own, like any sample.
    """

    found: TarSample
    drop: Drop

    @property
    def index(self) -> int:
        """Its number."""
        return self.found.index


Item = TarSample | LostSample


@dataclass(slots=True)
class _Open:
    """The sample whose members are being read; it has a ``drop`` once it is lost."""

    key: str
    offset: int
    end: int
    drop: Drop | None
    members: dict[str, bytes] = field(default_factory=dict)

    def extend(self, end: int) -> None:
        """Move its end to that of its newest member."""
        self.end = end

    def lose(self, drop: Drop) -> None:
        """Mark it as lost; the first fault is the one that is reported."""
        self.drop = self.drop or drop


class Grouping:
    """One pass over a shard: turns its files into samples, numbered from ``index``.

    Every fault goes to ``on_fault``, which raises it, or returns the drop of what it costs. A fault in the structure
    costs the sample before it and the first key after it, since both may lack members.

    With faults between the members of keys a, b and c::

        a.json  a.jpg  FAULT  b.jpg  c.json  c.jpg      lost: a (the fault may hide more of it), b  whole: c
        a.json  FAULT  a.jpg  b.json  b.jpg             lost: a                                     whole: b
    """

    def __init__(self, cursor: ByteCursor, index: int, on_fault: OnFault) -> None:
        self._cursor = cursor
        self._index = index
        self._on_fault = on_fault
        self._open: _Open | None = None
        self._keys: set[str] = set()
        # A fault after which no key is known to begin: its offset, and the drop of the next key.
        self._after: tuple[int, Drop] | None = None

    def items(self, walk: Iterable[Entry | Fault]) -> Generator[Item, None, None]:
        """The samples, whole and lost, of these files, in order."""
        for event in walk:
            member = event if isinstance(event, Fault) else member_of(event)
            if isinstance(member, Fault):
                self._break(member)
            elif member is not None and isinstance(event, Entry):
                if self._open is None or member.key != self._open.key:
                    yield from self._close()
                    self._begin(event, member)
                self._add(event, member)
        if self._open is None and self._after is not None:
            offset, drop = self._after
            yield LostSample(TarSample("", {}, self._index, offset, offset), drop)
        yield from self._close()

    def _break(self, fault: Fault) -> None:
        drop = self._on_fault(fault)
        if fault.complete:
            return
        if self._open is not None:
            self._open.lose(drop)
        elif self._after is not None:
            return
        detail = f"{drop.detail}; the first key after it may lack members"
        self._after = (fault.offset, damaged(fault.reason, detail))

    def _close(self) -> Generator[Item, None, None]:
        done, self._open = self._open, None
        if done is None:
            return
        sample = TarSample(done.key, done.members, self._index, done.offset, done.end)
        self._index += 1
        yield sample if done.drop is None else LostSample(sample, done.drop)

    def _begin(self, entry: Entry, member: Member) -> None:
        offset, drop = self._after or (entry.offset, None)
        if member.key in self._keys:
            what = f"member {entry.name!r} of key {member.key!r}: the key comes back after other keys"
            way_out = "write the files of a key next to each other (tar --sort=name)"
            drop = self._on_fault(Fault("repeated_key", entry.offset, what, way_out)) if drop is None else drop
        self._keys.add(member.key)
        self._open = _Open(member.key, offset, entry.end, drop)

    def _add(self, entry: Entry, member: Member) -> None:
        group = self._open
        if group is None:
            return
        if not entry.doubtful:
            self._after = None
        group.extend(entry.end)
        fault = member.fault
        if fault is None and member.extension in group.members:
            what = f"member {entry.name!r} of key {member.key!r} appears twice"
            fault = Fault("repeated_member", entry.offset, what, "give each member of a key its own extension")
        if fault is None:
            group.members[member.extension] = self._cursor.read(entry.size)
        else:
            group.lose(self._on_fault(fault))


def lose_split_samples(items: Iterable[Item]) -> Iterator[Item]:
    """The samples of a shard, with both halves of a split one lost.

    A key that returns with members that it already had loses its second sample only: the first was whole. A key that
    returns with other members loses both, since they are two halves. Raises ShardError where more than ``HELD_BACK``
    samples lie between the halves: the first was handed on by then.
    """
    held: dict[int, Item] = {}
    whole: dict[str, tuple[int, frozenset[str]]] = {}
    # Most samples of a shard have the same extensions: one set of them is kept, not one for each key.
    shared: dict[frozenset[str], frozenset[str]] = {}
    for item in items:
        if isinstance(item, TarSample):
            extensions = frozenset(item.members)
            whole[item.key] = item.index, shared.setdefault(extensions, extensions)
        elif item.drop.reason == "repeated_key" and item.found.key in whole:
            number, extensions = whole.pop(item.found.key)
            if extensions.isdisjoint(item.found.members):
                if number not in held:
                    raise ShardError(
                        f"{item.drop.detail}. Its first members were already handed on as sample {number}: no setting "
                        "can drop a sample that is spread over a shard like this"
                    )
                first = held[number]
                held[number] = LostSample(first, item.drop) if isinstance(first, TarSample) else first
        held[item.index] = item
        if len(held) > HELD_BACK:
            yield held.pop(next(iter(held)))
    yield from held.values()
