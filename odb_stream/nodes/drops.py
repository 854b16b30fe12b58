"""Drops: what is left out on this rank, counted by reason; the first of each reason is logged."""

import logging
from collections import Counter

from odb_stream.sample import Drop

logger = logging.getLogger(__name__)


class Drops:
    """The drops of one stream. ``logged`` are the reasons logged already; loaders keep it over epochs."""

    def __init__(self, logged: set[str]) -> None:
        self._logged = logged
        self.by_reason: Counter[str] = Counter()

    def count(self, drop: Drop, where: str) -> None:
        """Enter one sample."""
        if drop.reason not in self._logged:
            self._logged.add(drop.reason)
            logger.warning(
                "dropped %s: %s %s (further drops for this reason are only counted)", where, drop.reason, drop.detail
            )
        self.by_reason[drop.reason] += 1
