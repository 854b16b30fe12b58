"""What the benchmarks run on: lengths, seeded or from a folder; datasets made of them; the collate of other loaders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS = Path(__file__).resolve().parents[3] / "shared" / "data" / "lengths"
"""An optional folder beside the checkout, with arrays of real and paper-like lengths and a ``README.md`` about them."""

SAMPLES = 20_000
SEEDED = ("chat", "mixed", "short", "even")


def workload(name: str, samples: int = SAMPLES) -> list[int]:
    """Seeded lengths in tokens, 16 to 16,384.

    ``chat``: instruction data with a long tail. ``mixed``: three quarters short, the rest very long. ``short``: single
    turns of about 170 tokens. ``even``: any length from 16 to 8,192 alike.
    """
    rng = np.random.Generator(np.random.PCG64(20260619))
    if name == "chat":
        lengths = rng.lognormal(6.9, 0.5, samples)
    elif name == "mixed":
        lengths = np.where(rng.random(samples) < 0.75, rng.normal(180, 60, samples), rng.lognormal(8.0, 0.6, samples))
    elif name == "short":
        lengths = rng.lognormal(5.0, 0.55, samples)
    else:
        lengths = rng.uniform(16, 8_192, samples)
    return np.clip(lengths, 16, 16_384).astype(int).tolist()


def arrays(folder: Path) -> dict[str, list[int]]:
    """The arrays of a folder by name; none if it does not exist."""
    return {path.stem: np.load(path).tolist() for path in sorted(folder.glob("*.npy"))}


VOCABULARY = 64
SUCCESSORS = 4
"""How many tokens may follow a token; a model that learns the table has a loss of at most ln 4."""


def successors() -> np.ndarray:
    """Which tokens follow which, of shape (vocabulary, successors): the language of all rows."""
    return np.random.Generator(np.random.PCG64(3)).integers(1, VOCABULARY, (VOCABULARY, SUCCESSORS))


class Rows:
    """Sequences of a random language, one per length; the same index gives the same tokens."""

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
    """A dataset for the published package, which requires tensors and a mask."""

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
    """Samples of these lengths that cost nothing to make, so that only the loader's own cost is measured."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.tokens = np.arange(max(lengths), dtype=np.int64)

    @classmethod
    def of_size(cls, size: int) -> "Integers":
        """So many samples of 300 to 700 tokens."""
        return cls(np.random.Generator(np.random.PCG64(11)).integers(300, 701, size).tolist())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[: self.lengths[index]]}


def pad(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The usual padding collate: rows of shape (samples, longest)."""
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
