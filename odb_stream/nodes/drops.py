"""Drops: what is left out on this rank, counted by reason; the first of each reason is logged, damage is listed."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from odb_stream.sample import Drop, Record
from odb_stream.shards.quarantine import Quarantine

logger = logging.getLogger(__name__)


class DropCounts(NamedTuple):
    """What was dropped so far, as plain numbers."""

    by_reason: tuple[tuple[str, int], ...] = ()
    by_source: tuple[tuple[int, int], ...] = ()
    damaged: int = 0

    @classmethod
    def total(cls, counts: "Iterable[DropCounts]") -> "DropCounts":
        """The sum of these counts."""
        by_reason: Counter[str] = Counter()
        by_source: Counter[int] = Counter()
        damaged = 0
        for one in counts:
            by_reason.update(dict(one.by_reason))
            by_source.update(dict(one.by_source))
            damaged += one.damaged
        return cls(tuple(by_reason.items()), tuple(by_source.items()), damaged)

    def plain(self) -> dict[str, Any]:
        """The counts as plain data, fit for JSON."""
        return {
            "by_reason": dict(self.by_reason),
            "by_source": [list(pair) for pair in self.by_source],
            "damaged": self.damaged,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "DropCounts":
        """What :meth:`plain` wrote."""
        sources = tuple((source, number) for source, number in plain["by_source"])
        return cls(tuple(plain["by_reason"].items()), sources, plain["damaged"])


class Drops:
    """The drops of one stream. ``logged`` are the reasons logged already; loaders keep it over epochs.

    What proves broken when a burst is decoded is held until its step passes: a run that is resumed in the midst of a
    burst meets it again, and must not count it twice.
    """

    def __init__(self, logged: set[str], quarantine: Quarantine | None = None) -> None:
        self._logged = logged
        self._quarantine = quarantine
        self._held: list[tuple[int, Drop, Record]] = []
        self.by_reason: Counter[str] = Counter()
        self.by_source: Counter[int] = Counter()
        self._damaged = 0
        self._counts = DropCounts()

    @property
    def damaged(self) -> int:
        """Damaged samples met so far, those included that are held."""
        return self._damaged + sum(drop.damaged for _, drop, _ in self._held)

    def count(self, drop: Drop, record: Record) -> None:
        """Enter the sample of a record."""
        if drop.reason not in self._logged:
            self._logged.add(drop.reason)
            logger.warning(
                "dropped %s: %s %s (further drops for this reason are only counted)",
                record.where,
                drop.reason,
                drop.detail,
            )
        self.by_reason[drop.reason] += 1
        self.by_source[record.ref.source] += 1
        self._damaged += drop.damaged
        self._counts = DropCounts(tuple(self.by_reason.items()), tuple(self.by_source.items()), self._damaged)
        if drop.damaged and self._quarantine is not None:
            self._quarantine.add(record, drop)

    def hold(self, step: int, drop: Drop, record: Record) -> None:
        """Keep a sample that broke in a step of the round, until :meth:`release`."""
        self._held.append((step, drop, record))

    def release(self, step: int) -> None:
        """Enter what broke in the steps up to this one."""
        due = [held for held in self._held if held[0] <= step]
        if due:
            self._held = [held for held in self._held if held[0] > step]
            for _, drop, record in due:
                self.count(drop, record)

    def flush(self) -> None:
        """Write the quarantine file, if something was added."""
        if self._quarantine is not None:
            self._quarantine.flush()

    def counts(self) -> DropCounts:
        """What was entered so far, as an immutable value."""
        return self._counts

    def restore(self, counts: DropCounts) -> None:
        """Go on from these counts."""
        self.by_reason, self.by_source = Counter(dict(counts.by_reason)), Counter(dict(counts.by_source))
        self._damaged, self._counts = counts.damaged, counts
