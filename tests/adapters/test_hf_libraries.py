"""The libraries that build on the Trainer: adapters of peft, and TRL's SFTTrainer with the same mixin."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import Case, arguments, model, total_loss
from ranks_training import numbers_of
from transformers import AutoTokenizer, TrainerCallback

import odb_stream as odb
from odb_stream.adapters.huggingface import LoaderMixin, StreamTrainer

ROOT = Path(__file__).parents[2]
MOST_ERROR = 1e-6
CASE = Case((40,), settings={"grad_accum": 3, "layout": "packed"})
SGD = {"optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
GIVEN = {**SGD, "gradient_accumulation_steps": 3, "save_strategy": "no", "num_train_epochs": 1}


class Compare(TrainerCallback):
    """Holds each update's gradient against that of the token mean over its samples, each by itself."""

    def __init__(self, alone: Any) -> None:
        self.alone = alone
        self.error = self.size = 0.0
        self.trainer: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trained = [parameter for parameter in kwargs["model"].parameters() if parameter.requires_grad]
        mine = torch.cat([parameter.grad.flatten() for parameter in trained])
        self.alone.load_state_dict(kwargs["model"].state_dict())
        self.alone.zero_grad()
        total, tokens = total_loss(self.alone, self.trainer.held)
        (total / tokens).backward()
        alone = [parameter for parameter in self.alone.parameters() if parameter.requires_grad]
        reference = torch.cat([parameter.grad.flatten() for parameter in alone])
        self.error = max(self.error, float((mine - reference).abs().max()))
        self.size = max(self.size, float(reference.abs().max()))


class Held(LoaderMixin):
    """Keeps the numbers of the samples of the update that is being made."""

    held: list[int]

    def get_batch_samples(self, *args: Any) -> Any:
        window, items = super().get_batch_samples(*args)
        batches = [dict(batch) for batch in window]
        self.held = [n for batch in batches if not odb.pop_step(batch).idle for n in numbers_of(batch)]
        return window, items


class HeldTrainer(Held, StreamTrainer):
    pass


def library(name: str) -> Any:
    """A library that may be missing on a developer's machine, and never in CI."""
    return importlib.import_module(name) if "CI" in os.environ else pytest.importorskip(name)


def lora() -> Any:
    peft = library("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(model("qwen3"), config, autocast_adapter_dtype=False)


def test_lora_gets_the_gradient_of_the_token_mean(tmp_path: Path) -> None:
    compare = Compare(lora())
    args = arguments(str(tmp_path), **GIVEN, eval_strategy="epoch")
    with CASE.loader() as loader, CASE.loader(grad_accum=1) as other:
        trainer = HeldTrainer(lora(), args, train_loader=loader, eval_loader=other, callbacks=[compare])
        compare.trainer = trainer
        trainer.train()
        (evaluated,) = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert all("lora" in name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad)
    assert compare.size > 1e-3
    assert compare.error < MOST_ERROR
    total, tokens = total_loss(trainer.model, list(range(40)))
    assert evaluated == pytest.approx(total.item() / tokens, abs=MOST_ERROR)


@pytest.mark.slow
def test_trl_trains_on_a_loader_with_the_same_mixin(tmp_path: Path) -> None:
    trl = library("trl")

    class Trainer(Held, trl.SFTTrainer):
        pass

    args = trl.SFTConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, logging_steps=1,
        gradient_checkpointing=False, eval_strategy="epoch", **GIVEN,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "shards" / "demo" / "tokenizer")
    compare = Compare(model("qwen3"))
    with CASE.loader() as loader, CASE.loader(grad_accum=1) as other:
        trainer = Trainer(
            model("qwen3"), args, train_loader=loader, eval_loader=other, processing_class=tokenizer,
            callbacks=[compare],
        )  # fmt: skip
        compare.trainer = trainer
        trainer.train()
        assert loader.report()["emitted"] == 40
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1]["samples_seen"] == 40
    assert "mean_token_accuracy" in losses[-1]
    assert compare.size > 1e-3
    assert compare.error < MOST_ERROR
    (evaluated,) = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    compare.alone.load_state_dict(trainer.model.state_dict())
    total, tokens = total_loss(compare.alone, list(range(40)))
    assert evaluated == pytest.approx(total.item() / tokens, abs=MOST_ERROR)
