"""Models and libraries that build on the Trainer: adapters of peft, TRL's SFTTrainer, and a tiny Qwen3-VL."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import HfCase, Watched, Watching, arguments, mean_loss, model
from ranks_training import Compared, loss_of_all
from transformers import AutoTokenizer

import odb_stream as odb
from odb_stream.adapters.huggingface import StreamTrainer
from odb_stream.stages.visual import expander
from odb_stream.tiny_model import tiny_qwen3, tiny_qwen3_vl

ROOT = Path(__file__).parents[2]
MOST_ERROR = 1e-6
CASE = HfCase((40,), settings={"grad_accum": 3, "layout": "packed"})
SGD = {"optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
ONCE = {"num_train_epochs": 1, "save_strategy": "no", "eval_strategy": "epoch"}
GIVEN = {**SGD, **ONCE, "gradient_accumulation_steps": 3}


def library(name: str) -> Any:
    """A library that may be missing on a developer's machine, and never in CI."""
    return importlib.import_module(name) if "CI" in os.environ else pytest.importorskip(name)


def check(kind: Any, args: Any, make: Callable[[], Any], **more: Any) -> Any:
    """Train and evaluate: each update's gradient, the weights and both losses are those of one process."""
    found = Compared()
    with CASE.loader() as loader, CASE.loader(grad_accum=1) as other:
        trainer = kind(make(), args, train_loader=loader, eval_loader=other, **more)
        trainer.train()
        assert loader.report()["emitted"] == 40
    alone = make()
    found.compare(trainer.model.parameters(), trainer.gradients, trainer.updates, alone, mean_loss, trainer.rates)
    found.check(MOST_ERROR)
    (evaluated,) = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated == pytest.approx(loss_of_all(alone, range(40), mean_loss), abs=MOST_ERROR)
    return trainer


def test_lora_gets_the_gradient_of_the_token_mean(tmp_path: Path) -> None:
    peft = library("peft")

    def lora() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            return peft.get_peft_model(model("qwen3"), config, autocast_adapter_dtype=False)

    trainer = check(Watched, arguments(str(tmp_path), **GIVEN), lora)
    assert all("lora" in name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad)


@pytest.mark.slow
def test_trl_trains_on_a_loader_with_the_same_mixin(tmp_path: Path) -> None:
    trl = library("trl")

    class Trainer(Watching, trl.SFTTrainer):
        pass

    args = trl.SFTConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, logging_steps=1,
        gradient_checkpointing=False, **GIVEN,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "shards" / "demo" / "tokenizer")
    trainer = check(Trainer, args, lambda: model("qwen3"), processing_class=tokenizer)
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1]["samples_seen"] == 40
    assert "mean_token_accuracy" in losses[-1]


IMAGES = {"learning_rate": 5e-3, "save_strategy": "no", "logging_steps": 1, "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def pipeline() -> odb.Pipeline:
    sys.path.insert(0, str(ROOT / "pipelines"))
    built: odb.Pipeline = importlib.import_module("vision_chat").build()
    return built


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_vision_model_learns(pipeline: odb.Pipeline, layout: str, tmp_path: Path) -> None:
    """Images and M-RoPE positions pass through."""
    args = arguments(str(tmp_path), max_steps=4, lr_scheduler_type="constant", **IMAGES)
    with odb.Loader(pipeline, budget=odb.Budget(256), layout=layout, window=8, oversize="drop", grad_accum=2) as loader:
        trainer = StreamTrainer(tiny_qwen3_vl(2_048, 0, expander(pipeline.all_stages)), args, train_loader=loader)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.2


def test_a_text_model_is_refused_at_the_first_batch(pipeline: odb.Pipeline, tmp_path: Path) -> None:
    args = arguments(str(tmp_path), **IMAGES)
    with odb.Loader(pipeline, budget=odb.Budget(512), layout="packed", window=4, grad_accum=2) as loader:
        trainer = StreamTrainer(tiny_qwen3(2_048, 0), args, train_loader=loader)
        with pytest.raises(odb.ConfigError, match="4 rows of positions for M-RoPE"):
            trainer.train()
