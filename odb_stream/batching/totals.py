"""Totals: what ranks report of themselves, the totals of a step over all ranks, and every ratio of them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from odb_stream.batching.cost import IMAGES, PADDED, SAMPLES, SUPERVISED, TOKENS, Integers
from odb_stream.checkpoint.state import RunTotals
from odb_stream.sample import StepInfo

REPORT_BYTES = 512
"""Size of a rank's report in a round header, whatever it says: gathers exchange arrays of one length."""
OTHER_REASONS = "other reasons"


class RankReport(NamedTuple):
    """What one rank dropped so far and how long its samples waited, or the sum over ranks (the maximum of delays).

    ``damaged`` of the dropped samples are broken data; ``received`` counts the records that arrived. These two travel
    as plain integers of the round header, and :func:`encode_report` leaves them out.
    """

    dropped: dict[str, int]
    solo: int = 0
    max_delay: int = 0
    damaged: int = 0
    received: int = 0


def encode_report(report: RankReport) -> Integers:
    """The report as a fixed number of integers; the rarest reasons are lumped together where not all of them fit."""
    reasons = sorted(report.dropped.items(), key=lambda item: (-item[1], item[0]))
    kept = len(reasons)
    while len(text := _text(_lumped(reasons, kept), report)) > REPORT_BYTES:
        kept -= 1
    return np.frombuffer(text.ljust(REPORT_BYTES, b"\0"), dtype=np.int64)


def sum_reports(rows: Integers) -> RankReport:
    """The sum of the reports of all ranks, from their integers of shape (ranks, REPORT_BYTES / 8)."""
    dropped: Counter[str] = Counter()
    solo = max_delay = 0
    for row in rows:
        by_reason, own_solo, own_delay = json.loads(row.tobytes().rstrip(b"\0"))
        dropped.update(by_reason)
        solo += own_solo
        max_delay = max(max_delay, own_delay)
    return RankReport(dict(sorted(dropped.items())), solo, max_delay)


def _lumped(reasons: list[tuple[str, int]], kept: int) -> dict[str, int]:
    others = sum(number for _, number in reasons[kept:])
    return dict(reasons[:kept]) | ({OTHER_REASONS: others} if others else {})


def _text(dropped: dict[str, int], report: RankReport) -> bytes:
    return json.dumps([dropped, report.solo, report.max_delay], separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class StepTotals:
    """One step over all ranks; ``largest_padded`` is the padded tokens of the rank that has most of them."""

    step: int
    samples: int
    tokens: int
    padded_tokens: int
    largest_padded: int
    supervised: int
    images: int
    idle_ranks: int
    samples_seen: int


class StepCounter:
    """Numbers the steps of one epoch and keeps its running count of samples; the same on every rank."""

    def __init__(self, steps: int = 0, samples_seen: int = 0) -> None:
        self.steps = steps
        self.samples_seen = samples_seen

    def enter(self, counts: Integers) -> StepTotals:
        """Enter the next step: counts of shape (ranks, fields), zeros where a rank idles."""
        totals = counts.sum(axis=0).tolist()
        self.samples_seen += totals[SAMPLES]
        entered = StepTotals(
            step=self.steps,
            samples=totals[SAMPLES],
            tokens=totals[TOKENS],
            padded_tokens=totals[PADDED],
            largest_padded=int(counts[:, PADDED].max()),
            supervised=totals[SUPERVISED],
            images=totals[IMAGES],
            idle_ranks=int((counts[:, SAMPLES] == 0).sum()),
            samples_seen=self.samples_seen,
        )
        self.steps += 1
        return entered


def totals_of_step(info: StepInfo) -> RunTotals:
    """One step of this rank, to be added to its totals."""
    return RunTotals(
        emitted=info.samples,
        emitted_by_source=dict(Counter(ref.source for ref in info.refs)),
        steps=1,
        idle_steps=int(info.idle),
        tokens=info.tokens,
        padded_tokens=info.padded_tokens,
        supervised_tokens=info.supervised_tokens,
        critical_tokens=info.padded_tokens,
    )


def totals_of_all_ranks(step: StepTotals) -> RunTotals:
    """One step of all ranks, to be added to their totals."""
    return RunTotals(
        emitted=step.samples,
        steps=1,
        idle_steps=step.idle_ranks,
        tokens=step.tokens,
        padded_tokens=step.padded_tokens,
        supervised_tokens=step.supervised,
        critical_tokens=step.largest_padded,
    )


def totals_of_report(report: RankReport, by_source: Mapping[int, int] | None = None) -> RunTotals:
    """What a rank, or all of them, dropped in a pass, to be added to the totals when the pass ends."""
    return RunTotals(
        dropped=report.dropped,
        damaged=report.damaged,
        dropped_by_source=dict(by_source or {}),
        solo=report.solo,
        max_delay=report.max_delay,
    )


def padding_ratio(real: int, padded: int) -> float:
    """The share of padding: 1 - real / padded tokens; 0 without tokens."""
    return 1 - real / padded if padded else 0.0


def utilisation(real: int, room: int) -> float:
    """Real tokens over the tokens that the budget has room for: steps x ranks x budget; 0 without steps."""
    return real / room if room else 0.0


def critical_ratio(critical: int, real: int, ranks: int) -> float:
    """The sum over steps of the largest rank's padded tokens, over the real tokens of a rank; 0 without tokens.

    1 is ideal. It decides the time of synchronous steps: all ranks wait for the one with the most to do.
    """
    return critical * ranks / real if real else 0.0


def critical_tokens(ratio: float, real: int, ranks: int) -> int:
    """The count behind a :func:`critical_ratio`, for readers of reports, which give only the ratio.

    Exact as long as the tokens of a run are below 2^51: until then the error of the ratio is far less than a token.
    """
    return round(ratio * real / ranks)


def imbalance(critical: int, padded: int, ranks: int) -> float:
    """The padded tokens of the largest rank at each step, over the mean of all ranks; 1 is even, or no tokens."""
    even = padded / ranks
    return critical / even if even else 1.0


def loss_scale(supervised: int, total_supervised: int, world_size: int) -> float:
    """The factor that turns a rank's token-mean loss into its share of the token mean over all ranks.

    Data-parallel training averages gradients over ranks, hence the world size: the mean over ranks of
    ``loss * supervised * R / total`` is the sum of token losses over ``total``. 0 when nothing is supervised. With
    accumulation ``total_supervised`` is that of the whole window, and the micro-steps are summed, not averaged.
    """
    return supervised * world_size / total_supervised if total_supervised else 0.0


def report_figures(totals: RunTotals, *, ranks: int, budget: int) -> dict[str, int | float | dict[str, int]]:
    """Totals with their ratios, as ``Loader.report()`` gives them; ``budget`` is that of one rank's step, in tokens."""
    return {
        "emitted": totals.emitted,
        "dropped": dict(sorted(totals.dropped.items())),
        "damaged": totals.damaged,
        "abandoned": totals.abandoned,
        "solo": totals.solo,
        "steps": totals.steps,
        "idle_steps": totals.idle_steps,
        "tokens": totals.tokens,
        "padded_tokens": totals.padded_tokens,
        "supervised_tokens": totals.supervised_tokens,
        "padding_ratio": padding_ratio(totals.tokens, totals.padded_tokens),
        "real_utilisation": utilisation(totals.tokens, totals.steps * ranks * budget),
        "critical_ratio": critical_ratio(totals.critical_tokens, totals.tokens, ranks),
        "max_delay": totals.max_delay,
    }


def by_source(totals: RunTotals, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """What each source of a mix gave, by its name."""
    return {
        name: {
            "emitted": totals.emitted_by_source.get(number, 0),
            "dropped": totals.dropped_by_source.get(number, 0),
        }
        for number, name in enumerate(names)
    }
