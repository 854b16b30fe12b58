"""What a loader did recently and since the start, as plain numbers: differences between looks at its report."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from odb_stream.batching.totals import critical_tokens, imbalance, padding_ratio, utilisation
from odb_stream.live.verdict import verdict_of

RECENT_SECONDS = 5.0
"""The recent span begins at the newest look that is at least this old, or at the start."""


class ReportCounts(NamedTuple):
    """The counts of a report, of one rank or of all ranks."""

    steps: int
    samples: int
    tokens: int
    padded_tokens: int
    critical_tokens: int
    """The sum over steps of the padded tokens of the rank that had the most."""

    @classmethod
    def of(cls, report: Mapping[str, Any], ranks: int) -> Self:
        """The counts of a report over this many ranks."""
        critical = critical_tokens(report["critical_ratio"], report["tokens"], ranks)
        return cls(report["steps"], report["emitted"], report["tokens"], report["padded_tokens"], critical)

    def since(self, earlier: Self) -> Self:
        """The counts of the steps after an earlier look."""
        return type(self)(*(now - then for now, then in zip(self, earlier, strict=True)))


class Look(NamedTuple):
    """One look at the report of a loader; ``at`` is the time on the clock, in seconds."""

    at: float
    mine: ReportCounts
    everyone: ReportCounts
    waits: dict[str, float]


class Looks:
    """The looks from which figures are computed: the first one, and the recent ones.

    Args:
        report: the report at the first look, ``at`` seconds on the clock.
        rank: this rank, one of ``ranks`` data-parallel ranks.
        budget: most tokens in a step of one rank.
    """

    def __init__(self, report: Mapping[str, Any], at: float, *, rank: int, ranks: int, budget: int) -> None:
        self._rank = rank
        self._ranks = ranks
        self._budget = budget
        self._begin(self._look(report, at))

    def _begin(self, look: Look) -> None:
        self._start = look
        self._recent = deque([look])

    def figures(self, report: Mapping[str, Any], at: float, loss: float | None) -> dict[str, Any]:
        """The figures at a new look; see :meth:`odb_stream.live.LiveView.figures`."""
        look = self._look(report, at)
        if look.mine.steps < self._recent[-1].mine.steps:  # the loader loaded an earlier state
            self._begin(look)
        start, recent = self._start, self._recent
        recent.append(look)
        # The look before this one always stays, so that rare looks still leave a span to compute rates over.
        while len(recent) > 2 and recent[1].at <= at - RECENT_SECONDS:
            recent.popleft()
        lately = self._span_here(recent[0], look)
        waits_for, verdict = verdict_of(lately)
        return {
            "seconds": at - start.at,
            "rank": self._rank,
            "ranks": self._ranks,
            "steps": look.mine.steps,
            "loss": loss,
            **_totals(report),
            "recent": lately,
            "overall": self._span_here(start, look),
            "global": {
                **_totals(report["global"]),
                "recent": self._span_of_all(recent[0], look),
                "overall": self._span_of_all(start, look),
            },
            "trainer_waits_for": waits_for,
            "verdict": verdict,
        }

    def _look(self, report: Mapping[str, Any], at: float) -> Look:
        mine, everyone = ReportCounts.of(report, 1), ReportCounts.of(report["global"], self._ranks)
        return Look(at, mine, everyone, dict(report["wait_seconds"]))

    def _span_here(self, first: Look, last: Look) -> dict[str, Any]:
        seconds = last.at - first.at
        waits = {stage: waited - first.waits.get(stage, 0.0) for stage, waited in last.waits.items()}
        return {
            **_span(last.mine.since(first.mine), seconds, room=self._budget),
            "wait_seconds": waits,
            "wait_share": {stage: _per_second(waited, seconds) for stage, waited in waits.items()},
        }

    def _span_of_all(self, first: Look, last: Look) -> dict[str, Any]:
        counts = last.everyone.since(first.everyone)
        return {
            **_span(counts, last.at - first.at, room=self._ranks * self._budget),
            "imbalance": imbalance(counts.critical_tokens, counts.padded_tokens, self._ranks),
        }


def _totals(report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "samples": report["emitted"],
        "tokens": report["tokens"],
        "padded_tokens": report["padded_tokens"],
        "dropped": dict(report["dropped"]),
    }


def _span(counts: ReportCounts, seconds: float, *, room: int) -> dict[str, Any]:
    """Rates and ratios over some steps; ``room`` is the most tokens that one step can have."""
    return {
        "seconds": seconds,
        "steps": counts.steps,
        "samples_per_second": _per_second(counts.samples, seconds),
        "tokens_per_second": _per_second(counts.tokens, seconds),
        "padded_tokens_per_second": _per_second(counts.padded_tokens, seconds),
        "padding": padding_ratio(counts.tokens, counts.padded_tokens),
        "utilisation": utilisation(counts.tokens, counts.steps * room),
    }


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0  # two looks may see the same time
