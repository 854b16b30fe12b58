"""Openers and stages that worker processes import: harmless ones, and one for every way to fail."""

import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from odb_stream import seeds
from odb_stream.prepare.chunk import Result
from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import Drop, PreparedSample, Record, Sample, SampleRef, Stage


def numbers(record: Record) -> dict[str, Any]:
    """A sample whose content follows from its place."""
    return {"input_ids": list(range(1, 4 + record.ref.index % 50))}


def records(count: int, start: int = 0) -> list[Record]:
    """Records of a shard without content."""
    return [Record(SampleRef(0, 0, i, 512 * i), f"key{i}", "a.tar") for i in range(start, start + count)]


def prepare(*stages: Stage) -> Prepare:
    """What a pool over these stages runs."""
    return Prepare((SourceStages(numbers, stages),), seed=7)


def plain(result: Result) -> object:
    """A result in a form that compares."""
    if isinstance(result, PreparedSample):
        assert result.input_ids.dtype == result.labels.dtype == np.int32
        return result.ref, result.input_ids.tolist(), result.labels.tolist(), result.supervised
    return (type(result), str(result))


def shuffle(sample: Sample) -> Mapping[str, Any]:
    """Draws from the sample's own generator."""
    return {"input_ids": seeds.generator(sample, "shuffle").permutation(sample["input_ids"])}


def supervise_half(sample: Sample) -> Sample:
    """Labels that differ from the ids."""
    ids = list(sample["input_ids"])
    sample["labels"] = [-100] * (len(ids) // 2) + ids[len(ids) // 2 :]
    return sample


def drop_fifth(sample: Sample) -> Sample | Drop:
    return Drop("fifth", sample.key) if sample.ref.index % 5 == 4 else sample


def fail_at_30(sample: Sample) -> Sample:
    if sample.ref.index == 30:
        raise ValueError("thirty is too much")
    return sample


def heavy_modules(sample: Sample) -> dict[str, Any]:
    """Reports which heavy modules this process has loaded, as the second token: 0 for none."""
    loaded = {"torch", "transformers", "torchdata"} & set(sys.modules)
    return {"input_ids": [1, len(loaded)]}


def leave(sample: Sample) -> Sample:
    os._exit(7)


def carry(ballast: bytes, sample: Sample) -> Sample:
    return sample


def signal_itself(number: int, sample: Sample) -> Sample:
    os.kill(os.getpid(), number)
    return sample


def hold(path: Path, sample: Sample) -> Sample:
    """Writes its process id to a file, then never returns."""
    draft = path.with_suffix(f".{os.getpid()}")  # a name of its own: several workers may hold at once
    draft.write_text(str(os.getpid()))
    draft.rename(path)
    threading.Event().wait()
    return sample


class OnlyHere:
    """A stage that pickles but does not unpickle in a worker process."""

    def __call__(self, sample: Sample) -> Sample:
        return sample

    def __reduce__(self) -> Any:
        return functools.partial(only_in_main, "no vocabulary here"), ()


def only_in_main(complaint: str) -> OnlyHere:
    if multiprocessing.parent_process() is not None:
        raise LookupError(complaint)
    return OnlyHere()
