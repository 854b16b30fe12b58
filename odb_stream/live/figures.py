"""What a loader did since the start and of late, as plain numbers: differences between looks at its report."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from odb_stream.live.verdict import verdict_of

RECENT_SECONDS = 5.0
"""What is recent goes back to the newest look that is at least so old, or to the start."""

STARVED = "trainer"
"""The wait of the training loop for a batch; the other waits are those of the loader's own thread."""


class Counts(NamedTuple):
    """Totals of a report, of one rank or of all of them."""

    steps: int
    samples: int
    tokens: int
    padded_tokens: int
    critical_tokens: int
    """Summed over steps: the padded tokens of the rank that had most."""

    @classmethod
    def of(cls, report: Mapping[str, Any], ranks: int) -> Self:
        """Those of a report over this many ranks."""
        critical = round(report["critical_ratio"] * report["tokens"] / ranks)
        return cls(report["steps"], report["emitted"], report["tokens"], report["padded_tokens"], critical)

    def since(self, earlier: Self) -> Self:
        """What came between an earlier look and this one."""
        return type(self)(*(now - then for now, then in zip(self, earlier, strict=True)))


class Look(NamedTuple):
    """One look at the report of a loader, ``at`` a time of the clock in seconds."""

    at: float
    mine: Counts
    everyone: Counts
    waits: dict[str, float]


class Looks:
    """The looks that figures are made of: the first one, and the recent ones.

    Args:
        report: the first look, ``at`` seconds of the clock.
        rank: this rank, of ``ranks`` data-parallel ones.
        budget: tokens that a step of one rank may have.
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
        if look.mine.steps < self._recent[-1].mine.steps:  # the loader was set back to an earlier state
            self._begin(look)
        start, recent = self._start, self._recent
        recent.append(look)
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
        return Look(at, Counts.of(report, 1), Counts.of(report["global"], self._ranks), dict(report["wait_seconds"]))

    def _span_here(self, first: Look, last: Look) -> dict[str, Any]:
        seconds = last.at - first.at
        waits = {stage: waited - first.waits.get(stage, 0.0) for stage, waited in last.waits.items()}
        return {
            **_span(last.mine.since(first.mine), seconds, room=self._budget),
            "wait_seconds": waits,
            "wait_share": {stage: _ratio(waited, seconds) for stage, waited in waits.items()},
        }

    def _span_of_all(self, first: Look, last: Look) -> dict[str, Any]:
        counts = last.everyone.since(first.everyone)
        even = counts.padded_tokens / self._ranks
        return {
            **_span(counts, last.at - first.at, room=self._ranks * self._budget),
            "imbalance": counts.critical_tokens / even if even else 1.0,
        }


def _totals(report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "samples": report["emitted"],
        "tokens": report["tokens"],
        "padded_tokens": report["padded_tokens"],
        "dropped": dict(report["dropped"]),
    }


def _span(counts: Counts, seconds: float, *, room: int) -> dict[str, Any]:
    """Rates and ratios over some steps; ``room`` is what one step could hold, in tokens."""
    return {
        "seconds": seconds,
        "steps": counts.steps,
        "samples_per_second": _ratio(counts.samples, seconds),
        "tokens_per_second": _ratio(counts.tokens, seconds),
        "padded_tokens_per_second": _ratio(counts.padded_tokens, seconds),
        "padding": 1 - counts.tokens / counts.padded_tokens if counts.padded_tokens else 0.0,
        "utilisation": _ratio(counts.tokens, counts.steps * room),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
