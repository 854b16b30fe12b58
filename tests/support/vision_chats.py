"""A map-style dataset of chats with drawn pictures, importable by worker processes, and loaders over it."""

from dataclasses import dataclass

from vision_support import image_file, processor, turn

import odb_stream as odb
from odb_stream import stages

WORDS = ["red", "green", "blue", "big", "small", "left", "right", "above", "below", "of", "the", "and"]


@dataclass(frozen=True)
class Chats:
    """``size`` chats: item i has i % 3 images of its own sizes, and at least ``least``.

    With ``broken``, the images of item 5 of each ten are cut short; with ``text_only`` there are none.
    """

    size: int
    least: int = 0
    broken: bool = False
    text_only: bool = False

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        number = 0 if self.text_only else max(self.least, index % 3)
        sizes = [(40 + 17 * ((index + k) % 9), 30 + 23 * ((2 * index + k) % 7)) for k in range(number)]
        files = [image_file(*size, seed=index) for size in sizes]
        if self.broken and index % 10 == 5:
            files = [file[: len(file) // 2] for file in files]
        question = [*[None] * number, " ".join(WORDS[: 2 + index % 9]), f"chat {index}"]
        answer = turn("assistant", " ".join(WORDS[index % 5 : 5 + index % 7]))
        return {"messages": [turn("user", *question), answer], "images": files}


def pipeline(dataset, *more, family: str = "qwen3_vl", **source) -> odb.Pipeline:
    """The vision pipeline over a dataset; ``more`` stages come before the template."""
    model = processor(family)
    return odb.Pipeline(
        odb.FromDataset(dataset, **source),
        stages.MeasureImages(),
        *more,
        stages.ChatTemplate(model),
        stages.Tokenize(model),
        stages.ExpandVisualTokens(model),
    )
