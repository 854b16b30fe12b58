"""Pack: prepared samples enter the window and leave it as groups; drops and oversize samples are settled here."""

import logging
from collections import Counter
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from odb_stream.batching.footprint import Footprint, Size
from odb_stream.batching.ledger import Tally
from odb_stream.batching.planner import Planner
from odb_stream.config import Settings
from odb_stream.errors import OdbStreamError, OversizeError
from odb_stream.nodes.prepare import Outcome
from odb_stream.sample import Drop, PreparedSample

logger = logging.getLogger(__name__)


class Group(NamedTuple):
    """Samples that one rank will emit in one step, and their exact counts."""

    samples: tuple[PreparedSample, ...]
    tally: Tally


class Pack(BaseNode[Group]):
    """Yields the groups of one rank. ``begin_round`` must be called first; it sets the round's window."""

    def __init__(self, source: BaseNode[Outcome], settings: Settings, logged_reasons: set[str]) -> None:
        super().__init__()
        self._source = source
        self._logged_reasons = logged_reasons
        self._oversize = settings.oversize
        self._footprint = Footprint(settings.layout, settings.budget, settings.pad_to_multiple_of)
        self.planner = Planner(self._footprint, self._draw, window=settings.window, lookahead=settings.lookahead)
        self._held: dict[int, PreparedSample] = {}
        self._next_ticket = 0
        self.dropped: Counter[str] = Counter()
        self.solo = 0
        """Samples over the budget that were admitted because of ``oversize="solo"``."""
        self.received = 0
        """Records that arrived here, as samples or as drops."""

    def next(self) -> Group:
        tickets = self.planner.form_group()
        if tickets is None:
            raise StopIteration
        samples = tuple(self._held.pop(ticket) for ticket in tickets)
        return Group(samples, self._tally(samples))

    def begin_round(self, number: int) -> int:
        """Set the window of a round and return how many groups to plan in it."""
        self.planner.begin_round(number)
        return self.planner.lookahead

    def get_state(self) -> dict[str, Any]:
        return {"held": [list(sample.ref) for sample in self._held.values()], "source": self._source.state_dict()}

    def _draw(self) -> tuple[int, Size] | None:
        """The next sample that may enter the window; on the way, count what may not."""
        for outcome in self._source:
            self.received += 1
            result = outcome.result
            if isinstance(result, OdbStreamError):
                raise result
            if isinstance(result, Drop):
                self._count_drop(result, outcome)
                continue
            size = Size(result.length)
            if self._footprint.oversize(size) and not self._admits_oversize(outcome, size):
                continue
            ticket = self._next_ticket
            self._next_ticket += 1
            self._held[ticket] = result
            return ticket, size
        return None

    def _admits_oversize(self, outcome: Outcome, size: Size) -> bool:
        budget = self._footprint.budget
        place = f"{outcome.record.where} has {size.length} tokens, but the budget is {budget.tokens}"
        if self._oversize == "error":
            raise OversizeError(
                f"{place}; raise Budget(tokens=...), cut with Tokenize(max_length=...), "
                'or set oversize="drop" or oversize="solo"'
            )
        if self._oversize == "drop":
            self._count_drop(Drop("oversize", place), outcome)
            return False
        self.solo += 1
        return True

    def _count_drop(self, drop: Drop, outcome: Outcome) -> None:
        if drop.reason not in self._logged_reasons:
            self._logged_reasons.add(drop.reason)
            logger.warning(
                "dropped %s: %s %s (further drops for this reason are only counted)",
                outcome.record.where,
                drop.reason,
                drop.detail,
            )
        self.dropped[drop.reason] += 1

    def _tally(self, samples: tuple[PreparedSample, ...]) -> Tally:
        lengths = [sample.length for sample in samples]
        return Tally(
            samples=len(samples),
            tokens=sum(lengths),
            padded_tokens=self._footprint.tokens(lengths),
            supervised=sum(sample.supervised for sample in samples),
        )
