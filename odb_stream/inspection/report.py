"""The inspection itself: prepare some records, describe them, simulate every policy on them, suggest settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

from odb_stream.config import Layout, require_choice, require_int
from odb_stream.errors import ConfigError
from odb_stream.inspection.collect import Collected, Progress, collect
from odb_stream.inspection.figures import Histogram, ImageFigures, Spread, Supervised
from odb_stream.inspection.memory import Accelerator, MemoryBudget
from odb_stream.inspection.policies import (
    Comparison,
    Settings,
    SettingSuggestion,
    Simulator,
    compare,
    lengths_of_an_epoch,
    suggest_lookahead,
    suggest_window,
)
from odb_stream.inspection.times import DecodeTime, StageTime, decode_time, stage_times
from odb_stream.sources.pipeline import Pipeline

DEFAULT_BUDGET = 16_384
GIBIBYTE = 1024**3


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Records that were ``read`` and what became of them.

    ``kept`` samples could be emitted, but for those ``oversize`` against the budget, which are among them; ``dropped``
    counts the others by reason, and ``examples`` holds the first detail of each. ``epoch`` is the number of records in
    the whole epoch, None where only reading can tell; ``whole_epoch`` tells that all of it was read.
    """

    read: int
    kept: int
    oversize: int
    dropped: dict[str, int]
    examples: dict[str, str]
    epoch: int | None
    whole_epoch: bool


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Settings that would suit: of the window and lookahead, and where the memory was told, of the budget.

    ``oversize`` counts the measured samples that are longer than the budget suggested, None without one.
    """

    budget: MemoryBudget | None
    oversize: int | None
    window: SettingSuggestion
    lookahead: SettingSuggestion
    host_memory: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found; every field is plain data or a frozen dataclass of such.

    ``held_bytes`` are those of a sample in the window: its rows of integers and its images as compressed files.
    ``policies`` holds figures of :func:`odb_stream.batching.simulate.figures.simulate`.
    """

    settings: Settings
    samples: Counts
    lengths: Spread
    histogram: Histogram
    supervised: Supervised
    held_bytes: Spread
    images: ImageFigures | None
    times: tuple[StageTime, ...]
    decoding: DecodeTime | None
    policies: Comparison
    suggestion: Suggestion

    def plain(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings, numbers and None, fit for JSON, under the names of the fields."""
        plain: dict[str, Any] = _plain(self)
        return plain


def inspect(
    pipeline: Pipeline,
    *,
    samples: int | None = 2_000,
    seed: int = 0,
    workers: int = 0,
    budget: int | None = None,
    layout: Layout = "padded",
    window: int = 1024,
    lookahead: int = 128,
    batch_size: int = 8,
    world_size: int = 8,
    accelerator: Accelerator | None = None,
    host_memory: int = 4 * GIBIBYTE,
    progress: Progress | None = None,
) -> Inspection:
    """Measure a pipeline's samples and say what batching would make of them.

    ::

        from odb_stream.inspection import Accelerator, inspect

        found = inspect(pipeline, samples=500, accelerator=Accelerator(memory=40 * 2**30, model="config.json"))
        print(found.lengths.p95, found.suggestion.budget.tokens, found.suggestion.window.value)

    Args:
        pipeline: what a Loader would be given.
        samples: records to read of the first epoch's order, as one rank reads it; None for the whole epoch.
        seed: of the reading order, of every stage's draws, and of the lengths drawn for the simulations.
        workers: processes that run the stages; 0 runs them here. They import the main module: guard the script's own
            code with ``if __name__ == "__main__":``.
        budget: tokens of one rank's step, for the simulations; None takes what ``accelerator`` allows, or 16,384.
        layout: of the window and lookahead that are suggested; the policies are compared in both.
        window: samples held for grouping, for the policy ``anchored``. ``paper-window`` holds 256, as published.
        lookahead: groups planned in a round, at most.
        batch_size: samples in a batch of the policy ``fixed``.
        world_size: data-parallel ranks of the simulations.
        accelerator: memory and model, for a budget; without, none is suggested.
        host_memory: bytes on one rank that the samples of the window and of the planned groups may take.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        ConfigError: a setting cannot work, or the source is empty.
        StageError: every sample was dropped, or a stage failed. Damaged and missing data raise what they raise in a
            Loader.
    """
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"the first argument of inspect must be a Pipeline, not {pipeline!r}")
    if samples is not None:
        require_int("samples", samples, minimum=1)
    require_choice("layout", layout, get_args(Layout))
    numbers = {"window": window, "lookahead": lookahead, "batch_size": batch_size, "world_size": world_size}
    for name, value in {**numbers, "host_memory": host_memory}.items():
        require_int(name, value, minimum=1)
    require_int("seed", seed, minimum=0)
    if budget is not None:
        require_int("budget", budget, minimum=1)
    allowed = None if accelerator is None else accelerator.budget()
    tokens = budget or (allowed.tokens if allowed is not None else 0) or DEFAULT_BUDGET
    settings = Settings(budget=tokens, layout=layout, **numbers)

    collected, prepare = collect(pipeline, samples=samples, seed=seed, workers=workers, progress=progress)
    decoding = decode_time(prepare, collected.to_decode)
    lengths = lengths_of_an_epoch(collected.lengths, collected.epoch_samples, seed)
    simulator = Simulator(lengths, settings, progress)
    measured = len(collected.lengths)
    return Inspection(
        settings=settings,
        samples=_counts(collected, tokens),
        lengths=Spread.of(collected.lengths),
        histogram=Histogram.of(collected),
        supervised=Supervised.of(collected),
        held_bytes=Spread.of(collected.held_bytes),
        images=ImageFigures.of(collected),
        times=stage_times(pipeline, collected, decoding),
        decoding=decoding,
        policies=Comparison(
            measured=measured,
            lengths=len(lengths),
            redrawn=lengths is not collected.lengths,
            figures=compare(simulator),
        ),
        suggestion=_suggestion(simulator, collected, allowed, host_memory),
    )


def _suggestion(
    simulator: Simulator, collected: Collected, allowed: MemoryBudget | None, host_memory: int
) -> Suggestion:
    bytes_a_sample = sum(collected.held_bytes) / len(collected.held_bytes)
    window = suggest_window(simulator, bytes_a_sample=bytes_a_sample, host_memory=host_memory)
    return Suggestion(
        budget=allowed,
        oversize=None if allowed is None else allowed.oversize(collected.lengths),
        window=window,
        lookahead=suggest_lookahead(
            simulator, window.value, bytes_a_sample=bytes_a_sample, host_memory=host_memory
        ),
        host_memory=host_memory,
    )


def _counts(collected: Collected, budget: int) -> Counts:
    return Counts(
        read=collected.records,
        kept=len(collected.lengths),
        oversize=sum(length > budget for length in collected.lengths),
        dropped=dict(sorted(collected.reasons.items())),
        examples=dict(sorted(collected.examples.items())),
        epoch=collected.records if collected.ended else collected.epoch,
        whole_epoch=collected.ended,
    )


def _plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down."""
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
