"""Simulates every policy on the measured lengths, and finds the smallest window and lookahead that batch well."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_args

import numpy as np

from odb_stream.batching.cost import Footprint
from odb_stream.batching.simulate.figures import Figures, deal, simulate
from odb_stream.config import Budget, Layout, Policy, require_choice, require_int
from odb_stream.inspection.collect import ReportProgress
from odb_stream.seeds import LENGTH_DRAWS

PAPER_WINDOW = 256
"""The published default of the policy ``paper-window``."""
MOST_LENGTHS = 20_000
"""Enough for stable ratios, and few enough that all simulations take seconds."""
WINDOWS = (64, 128, 256, 512, 1024, 2048)
LOOKAHEADS = (32, 64, 128, 256, 512)
"""No shorter lookahead is tried: ranks exchange messages once per round, and short rounds mean frequent exchanges."""
TOLERANCE = 1.005
"""A setting is good enough if its critical_ratio is within this factor of the best."""

COMPARED: tuple[tuple[Policy, Layout], ...] = (
    ("anchored", "padded"),
    ("paper-window", "padded"),
    ("fixed", "padded"),
    ("gmt", "padded"),
    ("bmt", "padded"),
    ("anchored", "packed"),
    ("gmt", "packed"),
)
SIMULATIONS = len(COMPARED) + len(WINDOWS) + len(LOOKAHEADS)
"""Number of simulations in an inspection."""


def lengths_of_an_epoch(measured: list[int], epoch_samples: int | None, seed: int) -> list[int]:
    """Lengths to simulate with: the measured ones, or more of them, drawn with replacement.

    In a short epoch, start and end outweigh the middle. So this draws as many lengths as the epoch has samples, up to
    ``MOST_LENGTHS``, which is also the number if the size of the epoch is unknown.
    """
    wanted = MOST_LENGTHS if epoch_samples is None else min(MOST_LENGTHS, epoch_samples)
    if wanted <= len(measured):
        return measured
    # Raw output, whose stream NumPy guarantees across versions.
    raw = np.random.PCG64(np.random.SeedSequence((LENGTH_DRAWS, seed))).random_raw(wanted)
    drawn: list[int] = np.array(measured)[(raw % np.uint64(len(measured))).astype(np.intp)].tolist()
    return drawn


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """The settings that all simulations share, validated; ``budget`` is in tokens of one rank's step."""

    budget: int
    layout: Layout
    window: int
    lookahead: int
    batch_size: int
    world_size: int

    def __post_init__(self) -> None:
        require_choice("layout", self.layout, get_args(Layout))
        for number in fields(self):
            if number.type is int:
                require_int(number.name, getattr(self, number.name), minimum=1)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every policy on the same lengths.

    ``lengths`` is their number: the ``measured`` ones, or as many ``redrawn`` from those.
    """

    measured: int
    lengths: int
    redrawn: bool
    figures: tuple[Figures, ...]


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A value of a setting, its simulated critical_ratio, and the host memory for the samples of one rank."""

    value: int
    critical_ratio: float
    host_bytes: int


@dataclass(frozen=True, kw_only=True)
class SettingSuggestion:
    """The smallest value whose critical_ratio is within 0.5 % of the best, among the values that fit into host memory.

    ``fits`` is False if not even the smallest value fits; ``curve`` holds all values that were tried.
    """

    value: int
    fits: bool
    curve: tuple[CurvePoint, ...]


class Simulator:
    """Runs policies on the same lengths, and reports progress."""

    def __init__(
        self, lengths: Sequence[int], settings: SimulationSettings, report_progress: ReportProgress | None = None
    ) -> None:
        self._ranks = deal(lengths, settings.world_size)
        self.settings = settings
        self._report_progress = report_progress
        self._done = 0

    def run(
        self, policy: Policy, layout: Layout, *, window: int | None = None, lookahead: int | None = None
    ) -> Figures:
        """The figures of one policy."""
        settings = self.settings
        figures = simulate(
            self._ranks,
            policy=policy,
            footprint=Footprint(layout, Budget(settings.budget)),
            window=window or settings.window,
            lookahead=lookahead or settings.lookahead,
            batch_size=settings.batch_size,
        )
        self._done += 1
        if self._report_progress is not None:
            self._report_progress("simulating policies", self._done, SIMULATIONS)
        return figures


def compare(simulator: Simulator) -> tuple[Figures, ...]:
    """The figures of every policy, in the layouts in which it makes sense."""
    return tuple(
        simulator.run(policy, layout, window=PAPER_WINDOW if policy == "paper-window" else None)
        for policy, layout in COMPARED
    )


def suggest_window(simulator: Simulator, *, bytes_a_sample: float, host_memory: int) -> SettingSuggestion:
    """The window for the loader's own policy, in the layout of the settings."""
    points = []
    for window in WINDOWS:
        figures = simulator.run("anchored", simulator.settings.layout, window=window)
        points.append(_point(window, figures, window * bytes_a_sample))
    return _chosen(points, host_memory)


def suggest_lookahead(
    simulator: Simulator, window: int, *, bytes_a_sample: float, host_memory: int
) -> SettingSuggestion:
    """The lookahead for a window. A round holds the samples of its groups in addition to those in the window."""
    points = []
    for lookahead in LOOKAHEADS:
        figures = simulator.run("anchored", simulator.settings.layout, window=window, lookahead=lookahead)
        # An idle rank holds no group, so it must not lower the mean number of samples in a group.
        groups = figures.steps * figures.world_size - figures.idle_steps
        held = window + lookahead * (figures.emitted / groups if groups else 0.0)
        points.append(_point(lookahead, figures, held * bytes_a_sample))
    return _chosen(points, host_memory)


def _point(value: int, figures: Figures, host_bytes: float) -> CurvePoint:
    return CurvePoint(value=value, critical_ratio=figures.critical_ratio, host_bytes=round(host_bytes))


def _chosen(points: Sequence[CurvePoint], host_memory: int) -> SettingSuggestion:
    fitting = [point for point in points if point.host_bytes <= host_memory]
    candidates = fitting or [points[0]]  # the smallest, with a warning in ``fits``
    best = min(point.critical_ratio for point in candidates)
    value = next(point.value for point in candidates if point.critical_ratio <= best * TOLERANCE)
    return SettingSuggestion(value=value, fits=bool(fitting), curve=tuple(points))
