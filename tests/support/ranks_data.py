"""Numbered samples whose content follows from their number, and stages for them; importable by worker processes."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from make_tars import write_tar_file

from odb_stream import Drop
from odb_stream.seeds import generator

VOCABULARY = 64
IGNORED = -100
MOST_NUMBERS = VOCABULARY * VOCABULARY

Row = npt.NDArray[np.int32]


def sample(number: int) -> tuple[Row, Row]:
    """Tokens and labels of a sample: its number in the first two tokens, a masked prompt of any length, an answer."""
    length = 3 + (number * 37) % 88
    ids = (number * 7 + np.arange(length) * (1 + number % 5)) % VOCABULARY
    ids[:2] = divmod(number, VOCABULARY)
    labels = ids.copy()
    labels[: 1 + (number * 13) % (length - 1)] = IGNORED
    return ids.astype(np.int32), labels.astype(np.int32)


def number_of(ids: Any) -> int:
    """The number that a sample carries in its first two tokens."""
    return int(ids[0]) * VOCABULARY + int(ids[1])


class Numbered:
    """``size`` samples numbered from ``first`` on; with ``empty_first`` one without tokens lies before them."""

    def __init__(self, size: int, first: int = 0, *, empty_first: bool = False) -> None:
        assert first + size <= MOST_NUMBERS
        self.size, self.first, self.empty_first = size, first, empty_first

    def __len__(self) -> int:
        return self.size + self.empty_first

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.empty_first and index == 0:
            return {"input_ids": np.zeros(0, np.int32)}
        ids, labels = sample(self.first + index - self.empty_first)
        return {"input_ids": ids, "labels": labels}


def own_part(shares: tuple[int, ...], rank: int, **options: bool) -> Numbered:
    """A rank's part when the ranks hold these many samples: numbers are unique over ranks."""
    return Numbered(shares[rank], sum(shares[:rank]), **options)


def write_numbers(path: Path, size: int, *, indexed: bool) -> str:
    """A tar shard of numbered texts; returns its address."""
    files = [(f"{number:05d}.txt", str(number).encode()) for number in range(size)]
    return write_tar_file(path, files, indexed=indexed)


def numbered_text(sample_: Mapping[str, Any]) -> dict[str, Any]:
    """A stage: the sample whose number is in a text member."""
    ids, labels = sample(int(sample_["text"]))
    return {"input_ids": ids, "labels": labels}


class FailAt:
    """A stage that fails at one number.

    ``how``: it raises, or does so the first time only (``once``); its process is killed (``kill``); it makes a sample
    beyond any budget (``grow``).
    """

    def __init__(self, number: int, how: str = "raise") -> None:
        self.number, self.how = number, how

    def __call__(self, sample_: Any) -> Any:
        if number_of(sample_["input_ids"]) != self.number or (self.how == "once" and sample_.epoch):
            return sample_
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "grow":
            return {"input_ids": np.ones(100_000, np.int32)}
        raise ValueError(f"number {self.number} is not allowed")


def forbid(sample_: Any) -> Any:
    """A stage that drops whatever it gets."""
    return Drop("forbidden")


def same(sample_: Any) -> Any:
    """A stage that changes nothing."""
    return sample_


def letters(sample_: Any) -> dict[str, Any]:
    """A stage: one token a letter of a text that is cut at a drawn place."""
    text = sample_["text"][: int(generator(sample_, "cut").integers(4, 61))]
    return {"input_ids": [ord(letter) % 90 for letter in text]}
