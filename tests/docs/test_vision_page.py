"""The page on images is true: its worked example runs, and its reasons and rows are those of the code."""

import dataclasses
import re
from pathlib import Path

import pytest
from vision_support import Chats, pipeline, processor

import odb_stream as odb
from odb_stream import stages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "vision.md").read_text(encoding="utf-8")


def table(heading: str) -> list[str]:
    """The first column of the table under a heading, without backquotes."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [row.strip("`") for row in re.findall(r"^\| (`[^|]+`) \|", section, re.M)]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_worked_example_of_another_family_runs(layout):
    (program,) = re.findall(r"```python\n(import math.*?)```", PAGE, re.S)
    names: dict = {"__name__": "tiles"}
    exec(program, names)
    tiles = names["Tiles"]()
    model = processor("qwen3_vl")
    usual = pipeline(Chats(12))
    tiled = odb.Pipeline(usual.source, *usual.stages[:-1], stages.ExpandVisualTokens(model, family=tiles))
    image_id = model.tokenizer.convert_tokens_to_ids(tiles.image_token)
    rows = 0
    with odb.Loader(tiled, budget=odb.Budget(tokens=900), layout=layout) as loader:
        for batch in loader:
            assert "mm_token_type_ids" not in batch
            assert layout == "padded" or batch["position_ids"].ndim == 2
            if "pixel_values" in batch:
                rows += len(batch["pixel_values"])
                assert batch["pixel_values"].shape[1] == 64 * 64 * 3
                assert int((batch["input_ids"] == image_id).sum()) == 16 * len(batch["pixel_values"])
                assert 0 <= float(batch["pixel_values"].min()) <= float(batch["pixel_values"].max()) <= 1
        assert loader.report()["emitted"] == 12
    assert rows > 12
    with pytest.raises(stages.BadImage, match="at most 50 : 1"):
        tiles.measure(1_000, 2)


def test_the_reasons_are_those_of_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "odb_stream").rglob("*.py"))
    raised = set(re.findall(r'(?:BadImage|Drop|_Unbound)\(\s*"([a-z_]+)"', source)) - {"empty"}  # of a text
    assert set(table("What is dropped, and why")) == raised


def test_the_stages_are_the_packages():
    named = {row.split("(")[0] for row in table("The stages")}
    images = {
        name
        for name in stages.__all__
        if dataclasses.is_dataclass(getattr(stages, name)) and name not in ("FixedTokens", "PlannedImage")
    }
    assert named == images


def test_the_rows_of_the_table_are_what_a_batch_holds():
    beyond_text = set()
    for layout in ("padded", "packed"):
        with odb.Loader(pipeline(Chats(6, least=1)), budget=odb.Budget(tokens=4_000), layout=layout) as loader:
            for batch in loader:
                beyond_text |= set(batch) - {"input_ids", "labels", "attention_mask", "use_cache", "odb_step"}
                beyond_text -= {name for name in batch if name.startswith(("cu_seq_lens", "max_length"))}
    assert set(table("What a batch contains")) == beyond_text
