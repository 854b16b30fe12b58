"""Recipe: text chats from tar shards, rendered with the tokenizer's own chat template and tokenized."""

from pathlib import Path

import odb_stream as odb
from odb_stream import stages

DEMO = Path(__file__).resolve().parents[1] / "shards" / "demo"


def build(
    shards: str = str(DEMO / "chat-{000000..000003}.tar"),
    tokenizer: str = str(DEMO / "tokenizer"),
    max_length: int = 4_096,
) -> odb.Pipeline:
    """The pipeline of this recipe.

    Args:
        shards: address of the shards, with a brace range or a glob; see shards/README.md for the format.
        tokenizer: folder of a tokenizer with a chat template, saved by ``transformers``.
        max_length: most tokens of a sample; ``stages.Tokenize`` explains what it cuts and drops beyond that.

    Raises:
        ConfigError: the folder does not exist.
    """
    from transformers import AutoTokenizer

    if not Path(tokenizer).is_dir():
        raise odb.ConfigError(f"tokenizer is {tokenizer!r}, not a folder: give one that save_pretrained() wrote")
    processor = AutoTokenizer.from_pretrained(tokenizer)
    return odb.Pipeline(
        odb.Shards(shards),
        stages.ChatTemplate(processor),
        stages.Tokenize(processor, max_length=max_length),
    )


def main() -> None:
    """Stream one epoch of the demo shards and print each step and the report."""
    from rich.console import Console

    console = Console()
    with odb.Loader(build(), budget=odb.Budget(tokens=16_384), layout="packed") as loader:
        for batch in loader:
            step = odb.pop_step(batch)
            console.print(f"step {step.step}: {step.samples} samples, {step.tokens} tokens of 16384")
        console.print_json(data=loader.report())


if __name__ == "__main__":
    main()
