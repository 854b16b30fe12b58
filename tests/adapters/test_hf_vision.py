"""A tiny Qwen3-VL under the Trainer: images and M-RoPE positions pass through, padded and packed."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from hf_support import arguments

import odb_stream as odb
from odb_stream.adapters.huggingface import StreamTrainer
from odb_stream.stages import ExpandVisualTokens
from odb_stream.tiny_model import tiny_qwen3, tiny_qwen3_vl

ROOT = Path(__file__).parents[2]
VOCABULARY = 2_048
GIVEN = {"learning_rate": 5e-3, "save_strategy": "no", "logging_steps": 1, "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def pipeline() -> odb.Pipeline:
    sys.path.insert(0, str(ROOT / "pipelines"))
    built: odb.Pipeline = importlib.import_module("vision_chat").build()
    return built


def expand(pipeline: odb.Pipeline) -> Any:
    return next(stage for stage in pipeline.stages if isinstance(stage, ExpandVisualTokens))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_vision_model_learns(pipeline: odb.Pipeline, layout: str, tmp_path: Path) -> None:
    args = arguments(str(tmp_path), max_steps=4, lr_scheduler_type="constant", **GIVEN)
    with odb.Loader(pipeline, budget=odb.Budget(256), layout=layout, window=8, oversize="drop", grad_accum=2) as loader:
        trainer = StreamTrainer(tiny_qwen3_vl(VOCABULARY, 0, expand(pipeline)), args, train_loader=loader)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.2


def test_a_text_model_is_refused_at_the_first_batch(pipeline: odb.Pipeline, tmp_path: Path) -> None:
    args = arguments(str(tmp_path), **GIVEN)
    with odb.Loader(pipeline, budget=odb.Budget(512), layout="packed", window=4, grad_accum=2) as loader:
        trainer = StreamTrainer(tiny_qwen3(VOCABULARY, 0), args, train_loader=loader)
        with pytest.raises(odb.ConfigError, match="4 rows of positions for M-RoPE"):
            trainer.train()
