"""The check of a shard: what it holds and what is wrong with it, without an exception for damage."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from odb_stream.errors import ShardError
from odb_stream.sample import Record, SampleRef
from odb_stream.shardio import storage
from odb_stream.shardio.index import ShardIndex, index_of, read_index, stale
from odb_stream.shardio.members import open_members
from odb_stream.shardio.tar import TarSample, read_samples

MOST_PROBLEMS = 20
"""Problems that are listed for a shard; further ones are counted."""

IndexState = Literal["missing", "good", "bad"]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a check found in one shard (``address`` is fit for logs); counts end where it can no longer be read."""

    address: str
    samples: int
    members: int
    bytes: int
    index: IndexState
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


class _Check:
    """One pass over a shard: hands the samples through, counts them and collects the problems."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.samples = 0
        self.members = 0
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[TarSample]:
        try:
            for sample in read_samples(self.address):
                self.samples += 1
                self.members += len(sample.members)
                self._check_sample(sample)
                yield sample
        except ShardError as error:
            self.problems.append(str(error))
        else:
            if not self.samples:
                self.problems.append(f"{storage.log_name(self.address)}: the shard holds no sample; leave it out")

    def _check_sample(self, sample: TarSample) -> None:
        ref = SampleRef(0, 0, sample.index, sample.offset)
        record = Record(ref, sample.key, storage.log_name(self.address), sample.members)
        try:
            fields = open_members(record)
        except ShardError as error:
            self.problems.append(str(error))
            return
        if "messages" in fields and not _are_messages(fields["messages"]):
            self.problems.append(f"{record.where}: `messages` is no list of objects with `role` and `content`")


def check_shard(address: str) -> ShardReport:
    """Read a whole shard and report on it: tar structure, keys, json and txt members, and its index if there is one.

    Damage, and a missing file, become problems of the report. Raises ConfigError for an address that is refused.
    """
    try:
        size = storage.size(address)
    except ShardError as error:
        return ShardReport(storage.log_name(address), 0, 0, 0, "missing", (str(error),))
    check = _Check(address)
    found = index_of(check, size)
    state, problem = _check_index(address, found)
    problems = [*check.problems, *problem]
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], f"{len(problems) - MOST_PROBLEMS} more problems"]
    return ShardReport(storage.log_name(address), check.samples, check.members, size, state, tuple(problems))


def check_shards(addresses: Iterable[str]) -> Iterator[ShardReport]:
    """The reports of several shards, one after the other."""
    return map(check_shard, addresses)


def _check_index(address: str, found: ShardIndex) -> tuple[IndexState, list[str]]:
    try:
        index = read_index(address)
    except ShardError as error:
        return "bad", [str(error)]
    if index is None:
        return "missing", []
    if index != found:
        counted = f"(samples: {index.samples} in the index, {found.samples} read)"
        return "bad", [str(stale(address, f"the index does not fit the shard's content {counted}"))]
    return "good", []


def _are_messages(messages: Any) -> bool:
    return isinstance(messages, list) and bool(messages) and all(map(_is_message, messages))


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "role" in message and ("content" in message or "tool_calls" in message)
