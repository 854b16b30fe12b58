"""The check of a shard: what it holds and what is wrong with it; damage is reported, not raised."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from odb_stream import storage
from odb_stream.errors import ShardError
from odb_stream.sample import Drop, Record, SampleRef
from odb_stream.shards.index import ShardIndex, index_of, read_index, stale
from odb_stream.shards.members import open_or_drop
from odb_stream.shards.reader import EMPTY, read_items, read_ranges
from odb_stream.shards.tar.faults import Fault
from odb_stream.shards.tar.grouping import LostSample, TarSample
from odb_stream.storage.options import DEFAULT, Storage

MOST_PROBLEMS = 20
"""Problems that are listed for a shard; the others are counted."""

IndexState = Literal["missing", "good", "bad"]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a check found in one shard (``address`` is fit for logs).

    ``samples`` and ``members`` count what is whole, ``lost`` the samples that damage costs: exactly if the index is
    sound, otherwise at least that many.
    """

    address: str
    samples: int
    members: int
    bytes: int
    index: IndexState
    problems: tuple[str, ...]
    lost: int = 0

    @property
    def good(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


class _Check:
    """One pass over a shard: yields the whole samples, counts them and collects the problems."""

    def __init__(self, address: str, options: Storage) -> None:
        self.address = address
        self.options = options
        self.name = storage.log_name(address)
        self.samples = 0
        self.members = 0
        self.lost = 0
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[TarSample]:
        for item in read_items(self.address, self._note, options=self.options):
            if isinstance(item, LostSample):
                self.lost += 1
                continue
            self.samples += 1
            self.members += len(item.members)
            self._check_sample(item)
            yield item
        if not self.samples and not self.problems:
            self._note(EMPTY)

    def _note(self, fault: Fault) -> Drop:
        drop = fault.drop(self.name)
        self.problems.append(drop.detail)
        return drop

    def _check_sample(self, sample: TarSample) -> None:
        ref = SampleRef(0, 0, sample.index, sample.offset)
        record = Record(ref, sample.key, self.name, sample.members)
        fields = open_or_drop(record)
        if isinstance(fields, Drop):
            self.problems.append(fields.detail)
        elif "messages" in fields and not _are_messages(fields["messages"]):
            self.problems.append(f"{record.where}: `messages` is not a list of objects with `role` and `content`")


def check_shard(address: str, options: Storage = DEFAULT) -> ShardReport:
    """Read a whole shard and report on it: tar structure, keys, json and txt members, and its index if there is one.

    After damage the check continues where the next sample can be found. Damage, and a missing file, are problems in
    the report. Raises ConfigError for an address that is refused.
    """
    check = _Check(address, options)
    try:
        size = storage.size(address, options)
        # The same pass builds an index of the current content, to compare with the shard's own index.
        found = index_of(check, size)
    except ShardError as error:
        return ShardReport(check.name, check.samples, check.members, 0, "missing", (*check.problems, str(error)))
    samples, lost, problems = check.samples, check.lost, check.problems
    try:
        index = read_index(address, options, may_be_cut=True)
        state: IndexState = "missing" if index is None else "good"
        if index is not None and lost:
            samples, lost = _count_by_index(address, index, options)
        elif index is not None and index != found:
            state = "bad"
            what = f"the index does not fit the shard's content {_first_difference(index, found)}"
            problems.append(str(stale(address, what)))
    except ShardError as error:
        state = "bad"
        problems.append(str(error))
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], f"{len(problems) - MOST_PROBLEMS} more problems"]
    return ShardReport(check.name, samples, check.members, size, state, tuple(problems), lost)


def _count_by_index(address: str, index: ShardIndex, options: Storage) -> tuple[int, int]:
    """How many samples of a damaged shard are whole and how many are lost, by its index."""
    everything = ((0, index.samples),) if index.samples else ()
    items = read_ranges(address, index, everything, skip_damaged=True, options=options)
    lost = sum(isinstance(item, LostSample) for item in items)
    return index.samples - lost, lost


def _first_difference(index: ShardIndex, found: ShardIndex) -> str:
    if index.samples != found.samples:
        return f"(samples: {index.samples} in the index, {found.samples} read)"
    entries = [zip(one.keys, one.offsets, one.checksums, strict=True) for one in (index, found)]
    number = next(number for number, (one, other) in enumerate(zip(*entries, strict=True)) if one != other)
    return f"from sample {number} on, key {found.keys[number]!r}, byte offset {found.offsets[number]}"


def _are_messages(messages: Any) -> bool:
    return isinstance(messages, list) and bool(messages) and all(map(_is_message, messages))


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "role" in message and ("content" in message or "tool_calls" in message)
