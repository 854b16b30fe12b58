"""From the files of a shard to its samples: neighbouring files of one key; each sample is whole or lost."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from odb_stream.sample import Drop
from odb_stream.shards.tar.byte_cursor import ByteCursor
from odb_stream.shards.tar.faults import Fault, OnFault, damaged
from odb_stream.shards.tar.headers import Entry
from odb_stream.shards.tar.names import Member, member_of


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
