"""RunStatistics: what a loader did since it was built or resumed; the source of ``Loader.report()``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from odb_stream.batching.totals import (
    RankReport,
    by_source,
    report_figures,
    totals_of_all_ranks,
    totals_of_report,
    totals_of_step,
)
from odb_stream.checkpoint.state import RunTotals
from odb_stream.nodes.align import Step
from odb_stream.nodes.waits import Waits


class Dropped(NamedTuple):
    """What a pipeline dropped so far: on this rank, with the numbers by source, and on all ranks together."""

    mine: RankReport
    by_source: Mapping[int, int]
    everyone: RankReport


class RunStatistics:
    """The totals of this rank and of all ranks, the time spent waiting, and which messages were logged already.

    Totals are immutable and replaced as a whole, so a state keeps those of its step without a copy. Emitted samples
    enter with their step. Drops and abandoned samples enter when their pipeline ends, because it counts them itself.
    """

    def __init__(self) -> None:
        self.waits = Waits()
        self.logged_reasons: set[str] = set()
        """Drop reasons that were logged; only the first drop of each is."""
        self.mine = RunTotals()
        self.everyone = RunTotals()
        self._loss_scale_warned = False

    def restore(self, mine: RunTotals, everyone: RunTotals) -> None:
        """Continue from these totals."""
        self.mine, self.everyone = mine, everyone

    def count_step(self, step: Step) -> None:
        """Enter a step that the training loop took."""
        self.mine = self.mine.plus(totals_of_step(step.info))
        self.everyone = self.everyone.plus(totals_of_all_ranks(step.totals))

    def count_dropped(self, dropped: Dropped) -> None:
        """Enter what a pipeline dropped, when it ends."""
        self.mine, self.everyone = self._with(dropped)

    def count_abandoned(self, samples: int) -> None:
        """Enter samples of an epoch that was ended early. No rank waits for the others then, so each knows its own."""
        self.mine = self.mine.plus(RunTotals(abandoned=samples))
        self.everyone = replace(self.everyone, abandoned=self.mine.abandoned)

    def claim_loss_scale_warning(self) -> bool:
        """True for the first caller only: the warning about the loss scale is given once."""
        warned, self._loss_scale_warned = self._loss_scale_warned, True
        return not warned

    def report(self, *, running: Dropped | None, sources: Sequence[str], ranks: int, budget: int) -> dict[str, Any]:
        """See :meth:`odb_stream.Loader.report`; ``running`` is what the running pipeline dropped so far."""
        mine, everyone = (self.mine, self.everyone) if running is None else self._with(running)
        return {
            **report_figures(mine, ranks=1, budget=budget),
            "sources": by_source(mine, sources),
            "wait_seconds": dict(self.waits.seconds),
            "global": report_figures(everyone, ranks=ranks, budget=budget),
        }

    def _with(self, dropped: Dropped) -> tuple[RunTotals, RunTotals]:
        mine = self.mine.plus(totals_of_report(dropped.mine, dropped.by_source))
        return mine, self.everyone.plus(totals_of_report(dropped.everyone))
