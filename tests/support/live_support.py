"""A loader whose report is scripted, and a clock that is moved by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import odb_stream as odb

BUDGET = 1000


class Clock:
    """Gives ``now``, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Script:
    """The part of a Loader that a LiveView uses; its report says what the test entered."""

    def __init__(self, *, rank: int = 0, ranks: int = 1) -> None:
        self.world = odb.World(rank, ranks)
        self.settings = SimpleNamespace(budget=odb.Budget(BUDGET))
        self.reports = 0
        self.mine = [0, 0, 0, 0, 0]
        self.everyone = [0, 0, 0, 0, 0]
        self.dropped: dict[str, int] = {}
        self.dropped_of_all: dict[str, int] = {}
        self.waits = {"trainer": 0.0, "workers": 0.0, "read": 0.0, "peers": 0.0, "room": 0.0}

    def step(self, samples: int, tokens: int, padded: int, others: tuple[tuple[int, int, int], ...] = ()) -> None:
        """Enter a step: samples, tokens and padded tokens of this rank, and of each other."""
        ranks = [(samples, tokens, padded), *others]
        assert len(ranks) == self.world.size
        of_all = [sum(column) for column in zip(*ranks, strict=True)]
        largest = max(rank[2] for rank in ranks)
        self.mine = _added(self.mine, [1, samples, tokens, padded, padded])
        self.everyone = _added(self.everyone, [1, *of_all, largest])

    def report(self) -> dict[str, Any]:
        self.reports += 1
        return {
            **_figures(self.mine, self.dropped, 1),
            "wait_seconds": dict(self.waits),
            "global": _figures(self.everyone, self.dropped_of_all, self.world.size),
        }


def _added(totals: list[int], step: list[int]) -> list[int]:
    return [total + value for total, value in zip(totals, step, strict=True)]


def _figures(totals: list[int], dropped: dict[str, int], ranks: int) -> dict[str, Any]:
    steps, samples, tokens, padded, critical = totals
    return {
        "steps": steps,
        "emitted": samples,
        "tokens": tokens,
        "padded_tokens": padded,
        "critical_ratio": critical * ranks / tokens if tokens else 0.0,
        "dropped": dict(dropped),
    }


def tree(value: Any) -> Any:
    """The keys and types of nested dicts."""
    return {name: tree(one) for name, one in value.items()} if isinstance(value, dict) else type(value).__name__


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every TensorBoard scalar in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
