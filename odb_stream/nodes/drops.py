"""Drops: the samples that this rank leaves out, counted by reason. Logs the first of each, lists damage in a file."""

import logging
from collections import Counter

from odb_stream.checkpoint.state import DropCounts
from odb_stream.sample import Drop, Record
from odb_stream.shards.quarantine import Quarantine

logger = logging.getLogger(__name__)


class Drops:
    """The drops of one pipeline. ``logged`` are the reasons logged already; a loader keeps this set over epochs.

    A sample that proves broken while its burst is decoded is held until its step has passed: a run that resumes inside
    a burst meets it again, and must not count it twice.
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
        """Damaged samples met so far, including the held ones, so that the failure budget counts them at once."""
        return self._damaged + sum(drop.damaged for _, drop, _ in self._held)

    def count(self, drop: Drop, record: Record) -> None:
        """Count the sample of a record as dropped."""
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
        self._counts = DropCounts(by_reason=dict(self.by_reason), by_source=dict(self.by_source), damaged=self._damaged)
        if drop.damaged and self._quarantine is not None:
            self._quarantine.add(record, drop)

    def hold(self, step: int, drop: Drop, record: Record) -> None:
        """Keep a sample that broke in this step of the round, until :meth:`release`."""
        self._held.append((step, drop, record))

    def release(self, step: int) -> None:
        """Count what broke in the steps up to this one."""
        due = [held for held in self._held if held[0] <= step]
        if due:
            self._held = [held for held in self._held if held[0] > step]
            for _, drop, record in due:
                self.count(drop, record)

    def flush(self) -> None:
        """Write the quarantine file, if there is something new."""
        if self._quarantine is not None:
            self._quarantine.flush()

    def counts(self) -> DropCounts:
        """The drops counted so far. The value never changes: every step of a run refers to one."""
        return self._counts

    def restore(self, counts: DropCounts) -> None:
        """Continue from these counts."""
        self.by_reason, self.by_source = Counter(counts.by_reason), Counter(counts.by_source)
        self._damaged, self._counts = counts.damaged, counts
