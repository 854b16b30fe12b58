"""The inspection: prepares some records, describes them, simulates every policy on them, and suggests settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from odb_stream.config import DEFAULT_BUDGET, Layout, require_int
from odb_stream.errors import ConfigError
from odb_stream.inspection.collect import ReportProgress, collect
from odb_stream.inspection.figures import Histogram, ImageFigures, Spread, Supervised
from odb_stream.inspection.memory import Accelerator, MemoryBudget
from odb_stream.inspection.policies import (
    Comparison,
    SettingSuggestion,
    SimulationSettings,
    Simulator,
    compare,
    lengths_of_an_epoch,
    suggest_lookahead,
    suggest_window,
)
from odb_stream.inspection.times import DecodeTime, StageTime, decode_time, stage_times
from odb_stream.sources.pipeline import Pipeline

GIBIBYTE = 1024**3


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """How many records were ``read``, ``kept`` and ``dropped``.

    ``oversize`` counts the kept samples that exceed the budget. ``dropped`` counts by reason, and ``examples`` holds
    the first detail of each reason. ``epoch`` is the number of records in the whole epoch, None if it is unknown
    without reading all of it; ``whole_epoch`` is True if all of it was read.
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
    """Suggested settings: window, lookahead, and with an accelerator's memory the budget.

    ``oversize`` counts the measured samples that are longer than the suggested budget; None without one.
    """

    budget: MemoryBudget | None
    oversize: int | None
    window: SettingSuggestion
    lookahead: SettingSuggestion
    host_memory: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of an inspection; every field is plain data or a frozen dataclass of plain data.

    ``held_bytes`` are the bytes that a sample takes in the window: its rows of integers and its compressed images.
    ``policies`` holds the figures of :func:`odb_stream.batching.simulate.figures.simulate`.
    """

    settings: SimulationSettings
    samples: SampleCounts
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
        """The result as dicts, lists, strings, numbers and None, ready for JSON, under the names of the fields."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


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
    progress: ReportProgress | None = None,
) -> Inspection:
    """Measure the samples of a pipeline, simulate how every policy batches them, and suggest settings.

    ::

        from odb_stream.inspection import Accelerator, inspect

        found = inspect(pipeline, samples=500, accelerator=Accelerator(memory=40 * 2**30, model="config.json"))
        print(found.lengths.p95, found.suggestion.budget.tokens, found.suggestion.window.value)

    Args:
        pipeline: the pipeline that a Loader would run.
        samples: number of records to read, in the order of the first epoch on a single rank; None for the whole epoch.
        seed: seed of the reading order, of every stage's draws, and of the lengths drawn for the simulations.
        workers: number of processes that run the stages; 0 runs them in this one. Workers import the main module:
            guard the script's own code with ``if __name__ == "__main__":``.
        budget: tokens of one rank's step in the simulations; None takes the budget that ``accelerator`` allows, or
            16,384.
        layout: layout for which window and lookahead are suggested; the policies are compared in both.
        window: number of samples held for grouping, for the policy ``anchored``. ``paper-window`` holds 256, as
            published.
        lookahead: most groups planned in a round.
        batch_size: samples in a batch of the policy ``fixed``.
        world_size: number of data-parallel ranks in the simulations.
        accelerator: memory and model for which a budget is suggested; None suggests no budget.
        host_memory: bytes on one rank that the samples in the window and in the planned groups may take.
        progress: called with the name of the current task, how much of it is done, and how much there is in total
            (None if unknown).

    Raises:
        ConfigError: a setting is out of range, or the source is empty.
        StageError: every sample was dropped, or a stage failed. Damaged and missing data raise the errors that they
            raise in a Loader.
    """
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"the first argument of inspect must be a Pipeline, not {pipeline!r}")
    if samples is not None:
        require_int("samples", samples, minimum=1)
    require_int("host_memory", host_memory, minimum=1)
    require_int("seed", seed, minimum=0)
    allowed = None if accelerator is None else accelerator.budget()
    if budget is None:
        # An accelerator on which nothing fits allows 0 tokens; the policies are compared nevertheless.
        budget = (allowed.tokens if allowed is not None else 0) or DEFAULT_BUDGET
    # As in Loader, the signature is spelled out for IDEs, help() and type checkers; from here on it is one value.
    arguments = locals()
    settings = SimulationSettings(**{setting.name: arguments[setting.name] for setting in fields(SimulationSettings)})

    collected, prepare = collect(pipeline, samples=samples, seed=seed, workers=workers, report_progress=progress)
    decoding = decode_time(prepare, collected.to_decode)
    lengths = lengths_of_an_epoch(collected.lengths, collected.epoch_samples, seed)
    simulator = Simulator(lengths, settings, progress)
    compared = compare(simulator)
    # The mean, because a window of many samples is near it; the longest sample would suggest far too small a window.
    bytes_a_sample = sum(collected.held_bytes) / len(collected.held_bytes)
    best_window = suggest_window(simulator, bytes_a_sample=bytes_a_sample, host_memory=host_memory)
    return Inspection(
        settings=settings,
        samples=SampleCounts(
            read=collected.records,
            kept=len(collected.lengths),
            oversize=sum(length > budget for length in collected.lengths),
            dropped=dict(sorted(collected.reasons.items())),
            examples=dict(sorted(collected.examples.items())),
            epoch=collected.records if collected.ended else collected.epoch,
            whole_epoch=collected.ended,
        ),
        lengths=Spread.of(collected.lengths),
        histogram=Histogram.of(collected),
        supervised=Supervised.of(collected),
        held_bytes=Spread.of(collected.held_bytes),
        images=ImageFigures.of(collected),
        times=stage_times(pipeline, collected, decoding),
        decoding=decoding,
        policies=Comparison(
            measured=len(collected.lengths),
            lengths=len(lengths),
            redrawn=lengths is not collected.lengths,
            figures=compared,
        ),
        suggestion=Suggestion(
            budget=allowed,
            oversize=None if allowed is None else allowed.oversize(collected.lengths),
            window=best_window,
            lookahead=suggest_lookahead(
                simulator, best_window.value, bytes_a_sample=bytes_a_sample, host_memory=host_memory
            ),
            host_memory=host_memory,
        ),
    )


def _plain(value: Any) -> Any:
    # Not dataclasses.asdict, which leaves tuples as they are: read back from JSON, the form would differ.
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
