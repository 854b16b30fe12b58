"""How long reading, each stage, and the decoding of images take per sample."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from odb_stream.inspection.collect import Collected
from odb_stream.prepare.clock import NOTHING, OPENER, WHOLE, Spent
from odb_stream.prepare.records import Prepare, prepare_for, stage_name
from odb_stream.sample import Drop, PreparedSample
from odb_stream.sources.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """The time of one stage of one source: ``milliseconds`` per sample that reached it, and its ``share`` of all time.

    ``source`` is empty for stages that all sources share. Times are measured in one process: N workers run everything
    except reading N times in parallel.
    """

    stage: str
    source: str
    samples: int
    milliseconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class DecodeTime:
    """The decoding of a few images: their number, how many samples had a broken image, and the time per image."""

    images: int
    broken_samples: int
    milliseconds_an_image: float


def decode_time(prepare: Prepare, samples: Sequence[PreparedSample]) -> DecodeTime | None:
    """Time the decoding of these samples' images in this process; None without samples.

    Raises the errors of the image transforms.
    """
    if not samples:
        return None
    _decodes(prepare, samples[0])  # untimed, because the first call loads the codecs
    started = time.perf_counter()
    broken = sum(not _decodes(prepare, sample) for sample in samples)
    seconds = time.perf_counter() - started
    images = sum(len(sample.images) for sample in samples)
    return DecodeTime(images=images, broken_samples=broken, milliseconds_an_image=1000 * seconds / images)


def stage_times(pipeline: Pipeline, collected: Collected, decoding: DecodeTime | None) -> tuple[StageTime, ...]:
    """The time of each stage in the order in which a sample passes them, one source after another."""
    rows = [("read", "", Spent(collected.records, collected.read_seconds))]
    sources = prepare_for(pipeline, 0).sources
    for number, (name, source) in enumerate(zip(collected.names, sources, strict=True)):
        shown = name if len(sources) > 1 else ""
        names = [f"open ({stage_name(source.opener)})", *map(stage_name, source.stages)]
        # A stage's place in its source follows that of the opener.
        parts = [collected.spent.get((number, place), NOTHING) for place in range(OPENER, OPENER + len(names))]
        rows += [(stage, shown, spent) for stage, spent in zip(names, parts, strict=True)]
        whole = collected.spent.get((number, WHOLE), NOTHING)
        # A difference of rounded sums may fall below 0, which a time never does.
        checks = max(0.0, whole.seconds - sum(spent.seconds for spent in parts))
        rows.append(("checks", shown, Spent(whole.calls, checks)))
    if decoding is not None:
        # Only a few images were decoded: a run decodes each image once, after planning, outside the stages.
        seconds = decoding.milliseconds_an_image * len(collected.files) / 1000
        rows.append(("decode images (estimated)", "", Spent(len(collected.lengths), seconds)))
    total = sum(spent.seconds for _, _, spent in rows)
    return tuple(
        StageTime(
            stage=stage,
            source=source,
            samples=spent.calls,
            milliseconds=1000 * spent.seconds / spent.calls if spent.calls else 0.0,
            share=spent.seconds / total if total else 0.0,
        )
        for stage, source, spent in rows
    )


def _decodes(prepare: Prepare, sample: PreparedSample) -> bool:
    """Make the pixels of a sample. Returns whether all its images decode."""
    decoded = prepare.decode(sample.ref.source, sample.images, sample.where)
    if isinstance(decoded, Drop):
        return False
    decoded.pixels()
    return True
