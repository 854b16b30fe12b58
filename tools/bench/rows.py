"""Samples made on access for benchmarks of loaders and training: seeded, learnable tokens of given lengths."""

from typing import Any

import numpy as np

VOCABULARY = 64
SUCCESSORS = 4
"""Tokens that may follow a token: a model that learns the table has a loss of ln 4 at most."""


def successors() -> np.ndarray:
    """Which tokens follow which, of shape (vocabulary, successors): the language of all rows."""
    return np.random.Generator(np.random.PCG64(3)).integers(1, VOCABULARY, (VOCABULARY, SUCCESSORS))


class Rows:
    """Sequences of a random language, one a length; the same index gives the same tokens."""

    def __init__(self, lengths: list[int], first: int = 0) -> None:
        self.lengths = lengths
        self.first = first
        self.table = successors()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        draw = np.random.Generator(np.random.PCG64(self.first + index))
        choices = np.minimum(draw.geometric(0.4, self.lengths[index]), SUCCESSORS) - 1
        ids = np.empty(self.lengths[index], dtype=np.int64)
        token = int(draw.integers(1, VOCABULARY))
        for place, choice in enumerate(choices.tolist()):
            ids[place] = token
            token = int(self.table[token, choice])
        return {"input_ids": ids}


class AsTensors:
    """A dataset for the published package, which wants tensors and a mask."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        item = self.dataset[index]
        ids = torch.as_tensor(np.asarray(item["input_ids"], dtype=np.int64))
        labels = torch.as_tensor(np.asarray(item.get("labels", item["input_ids"]), dtype=np.int64))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Integers:
    """Samples of 300 to 700 integers that cost nothing to make: what is left is the loader's own cost."""

    def __init__(self, size: int) -> None:
        self.lengths = np.random.Generator(np.random.PCG64(11)).integers(300, 701, size)
        self.tokens = np.arange(700, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[: self.lengths[index]]}


def pad(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The padding collate that everybody writes: rows of (samples, longest)."""
    import torch

    width = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros((len(items), width), dtype=torch.int64)
    labels = torch.full((len(items), width), -100, dtype=torch.int64)
    mask = torch.zeros((len(items), width), dtype=torch.int64)
    for row, item in enumerate(items):
        length = len(item["input_ids"])
        ids[row, :length] = torch.as_tensor(np.asarray(item["input_ids"]))
        labels[row, :length] = torch.as_tensor(np.asarray(item.get("labels", item["input_ids"])))
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
