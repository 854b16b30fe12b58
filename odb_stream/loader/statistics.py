"""What a loader did, as plain numbers: the source of ``Loader.report()``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from odb_stream.batching.account import Account
from odb_stream.batching.ledger import StepTotals
from odb_stream.sample import StepInfo

_BY_SOURCE = ("emitted_by_source", "dropped_by_source")


@dataclass
class Totals:
    """Running totals over steps, of one rank or of all ranks together."""

    emitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    emitted_by_source: Counter[int] = field(default_factory=Counter)
    dropped_by_source: Counter[int] = field(default_factory=Counter)
    abandoned: int = 0
    solo: int = 0
    steps: int = 0
    idle_steps: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    supervised_tokens: int = 0
    critical_tokens: int = 0
    max_delay: int = 0

    def count(self, info: StepInfo) -> None:
        """Enter one step of this rank."""
        self.emitted += info.samples
        self.emitted_by_source.update(ref.source for ref in info.refs)
        self.steps += 1
        self.idle_steps += info.idle
        self.tokens += info.tokens
        self.padded_tokens += info.padded_tokens
        self.supervised_tokens += info.supervised_tokens
        self.critical_tokens += info.padded_tokens

    def count_all(self, totals: StepTotals) -> None:
        """Enter one step of all ranks."""
        self.emitted += totals.samples
        self.steps += 1
        self.idle_steps += totals.idle_ranks
        self.tokens += totals.tokens
        self.padded_tokens += totals.padded_tokens
        self.supervised_tokens += totals.supervised
        self.critical_tokens += totals.largest_padded

    def add(self, account: Account, dropped_by_source: Mapping[int, int] | None = None) -> None:
        """Enter what is known only when a stream ends."""
        self.dropped.update(account.dropped)
        self.damaged += account.damaged
        self.dropped_by_source.update(dropped_by_source or {})
        self.solo += account.solo
        self.max_delay = max(self.max_delay, account.max_delay)

    def copy(self) -> "Totals":
        """These totals as they are now."""
        return replace(
            self,
            dropped=Counter(self.dropped),
            emitted_by_source=Counter(self.emitted_by_source),
            dropped_by_source=Counter(self.dropped_by_source),
        )

    def plain(self) -> dict[str, Any]:
        """The totals as plain data, fit for JSON."""
        sources = {name: [list(pair) for pair in getattr(self, name).items()] for name in _BY_SOURCE}
        return {**vars(self), "dropped": dict(self.dropped), **sources}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Totals":
        """What :meth:`plain` wrote."""
        sources = {name: Counter(dict(plain[name])) for name in _BY_SOURCE}
        return cls(**{**plain, "dropped": Counter(plain["dropped"]), **sources})

    def by_source(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """What each source gave, by name."""
        return {
            name: {"emitted": self.emitted_by_source[number], "dropped": self.dropped_by_source[number]}
            for number, name in enumerate(names)
        }

    def figures(self, *, ranks: int, budget: int) -> dict[str, Any]:
        """The totals with their ratios, defined as in :class:`odb_stream.batching.simulate.figures.Figures`."""
        room = self.steps * ranks * budget
        return {
            "emitted": self.emitted,
            "dropped": dict(sorted(self.dropped.items())),
            "damaged": self.damaged,
            "abandoned": self.abandoned,
            "solo": self.solo,
            "steps": self.steps,
            "idle_steps": self.idle_steps,
            "tokens": self.tokens,
            "padded_tokens": self.padded_tokens,
            "supervised_tokens": self.supervised_tokens,
            "padding_ratio": 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0,
            "real_utilisation": self.tokens / room if room else 0.0,
            "critical_ratio": self.critical_tokens * ranks / self.tokens if self.tokens else 0.0,
            "max_delay": self.max_delay,
        }
