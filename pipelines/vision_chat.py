"""Recipe: chats with images from tar shards, for Qwen3-VL: measured first, decoded last, resized at random."""

from pathlib import Path
from typing import Any

import odb_stream as odb
from odb_stream import stages

VISION = Path(__file__).resolve().parents[1] / "shards" / "vision"


def build(
    shards: str = str(VISION / "chat-{000000..000003}.tar"),
    processor: str = str(VISION / "processor"),
    max_length: int = 4_096,
) -> odb.Pipeline:
    """The pipeline of this recipe.

    Args:
        shards: address of the shards, with a brace range or a glob; see shards/README.md for the format.
        processor: folder of a Qwen3-VL processor: its tokenizer with the chat template, and its
            ``preprocessor_config.json``.
        max_length: most tokens of a sample, including its image tokens; no image is ever cut.

    Raises:
        ConfigError: the folder does not exist.
    """
    loaded = load_processor(processor)
    return odb.Pipeline(
        odb.Shards(shards),
        stages.MeasureImages(),
        stages.RandomResize(scale=(0.8, 1.0)),
        stages.ChatTemplate(loaded),
        stages.Tokenize(loaded, max_length=max_length),
        stages.ExpandVisualTokens(loaded),
    )


def load_processor(folder: str) -> Any:
    """Load a processor of transformers for images alone: its video part would require torchvision."""
    from transformers import AutoTokenizer, Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class ImagesOnly(Qwen3VLProcessor):
        """Qwen3-VL's processor without its video part."""

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    if not Path(folder).is_dir():
        raise odb.ConfigError(f"processor is {folder!r}, not a folder: give one that save_pretrained() wrote")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return ImagesOnly(images, tokenizer, chat_template=tokenizer.chat_template)


def main() -> None:
    """Stream one epoch of the demo shards and print each step and the report."""
    from rich.console import Console

    console = Console()
    budget = odb.Budget(tokens=4_096, patches=8_192)
    with odb.Loader(build(), budget=budget, layout="packed") as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            images = len(batch.get("image_grid_thw", ()))
            console.print(f"step {step.step}: {step.samples} samples, {step.tokens} tokens of 4096, {images} images")
        console.print_json(data=loader.report())


if __name__ == "__main__":
    main()
