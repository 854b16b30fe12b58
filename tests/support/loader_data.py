"""Small map-style datasets and stages, importable by worker processes, and loaders of small batches over them."""

import numpy as np

import odb_stream as odb
from odb_stream import Drop


def loader(dataset, *stages, shuffle=True, sharded=False, **settings) -> odb.Loader:
    """A loader whose windows and batches are so small that few samples make several rounds."""
    source = odb.FromDataset(dataset, shuffle=shuffle, sharded=sharded)
    return odb.Loader(
        odb.Pipeline(source, *stages), **{"budget": odb.Budget(128), "window": 32, "lookahead": 8, **settings}
    )


class Ready:
    """``size`` samples of known tokens: item i holds ``[i, i, ...]``, between 2 and 40 of them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": np.full(2 + (index * 37) % 39, index + 1, np.int32)}


def drop_thirds(sample):
    """Drops every third item."""
    return Drop("every_third") if sample.ref.index % 3 == 0 else sample


def drop_all(sample):
    return Drop("unwanted")


def fail_at_fifty(sample):
    if sample.ref.index == 50:
        raise ValueError("fifty is not allowed")
    return sample


def jitter(sample):
    """Cuts the sample at a place drawn from its seed."""
    from odb_stream.seeds import generator

    keep = int(generator(sample, "jitter").integers(2, len(sample["input_ids"]) + 1))
    return {**sample, "input_ids": sample["input_ids"][:keep]}


def step_info(**values) -> odb.StepInfo:
    """A step info of one sample of two tokens, with these values instead."""
    counts = {"samples": 1, "tokens": 2, "padded_tokens": 2, "supervised_tokens": 1}
    everyone = {"global_samples": 2, "global_tokens": 4, "global_supervised_tokens": 2, "samples_seen": 2}
    return odb.StepInfo(**{"epoch": 0, "step": 0, "refs": (), "loss_scale": 1.0, **counts, **everyone, **values})
