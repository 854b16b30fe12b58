"""What would spoil training on a loader is refused at the start, by name, with the way out."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import HfCase, Watched, arguments, model
from ranks_data import VOCABULARY, Numbered, numbered_text, write_numbers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

import odb_stream as odb
from odb_stream.adapters.huggingface import StreamTrainer
from odb_stream.adapters.huggingface.checks import check_ranks
from odb_stream.adapters.huggingface.packing import check_packing, check_positions, has_mrope
from odb_stream.tiny_model import TEXT

CASE = HfCase((40,))


def refused(tmp_path: Path, told: str, trainer: dict[str, Any] | None = None, **given: Any) -> None:
    """Building the trainer must raise a ConfigError that says this."""
    args = arguments(str(tmp_path), **given)
    with CASE.loader() as loader, pytest.raises(odb.ConfigError, match=told):
        StreamTrainer(model("mean"), args, **{"train_loader": loader, **(trainer or {})})


@pytest.mark.parametrize(
    ("told", "given"),
    [
        ("per_device_train_batch_size is 4", {"per_device_train_batch_size": 4}),
        ("auto_find_batch_size", {"auto_find_batch_size": True}),
        ("gradient_accumulation_steps is 2, but the loader's grad_accum is 1", {"gradient_accumulation_steps": 2}),
        ("dispatch_batches", {"accelerator_config": {"dispatch_batches": True}}),
        ("split_batches", {"accelerator_config": {"split_batches": True}}),
        ("dataloader_num_workers is 3", {"dataloader_num_workers": 3}),
        ("dataloader_drop_last", {"dataloader_drop_last": True}),
        ("train_sampling_strategy is 'group_by_length'", {"train_sampling_strategy": "group_by_length"}),
        ("include_num_input_tokens_seen", {"include_num_input_tokens_seen": "all"}),
        ("logging_steps is 0.1", {"logging_steps": 0.1}),
        ("warmup_steps is 10 steps", {"warmup_steps": 10}),
    ],
)
def test_arguments(tmp_path: Path, told: str, given: dict[str, Any]) -> None:
    refused(tmp_path, told, **given)


def test_data_beside_the_loader(tmp_path: Path) -> None:
    refused(tmp_path, "train_dataset is given beside train_loader", {"train_dataset": Numbered(3)})
    refused(tmp_path, "train_loader must be an odb_stream Loader", {"train_loader": Numbered(3)})
    refused(tmp_path, "schedule is 'epochs'", {"schedule": "epochs"})
    refused(tmp_path, "max_steps is -1", {"schedule": "steps"})
    with CASE.loader(closure="quota", quota=10) as other:
        refused(tmp_path, "eval_loader has closure='quota'", {"eval_loader": other})


def test_a_loader_for_other_ranks() -> None:
    told = "built for 1 ranks, but the trainer has 2 data-parallel ones"
    with CASE.loader() as loader, pytest.raises(odb.ConfigError, match=told):
        check_ranks(loader, "train_loader", 4, 2)


def test_an_unknown_end_needs_a_schedule_without_one(tmp_path: Path) -> None:
    """Without an index the loader cannot tell how many samples are to come."""
    unindexed = odb.Pipeline(odb.Shards(write_numbers(tmp_path / "a.tar", 60, indexed=False)), numbered_text)
    given = {"budget": odb.Budget(128), "window": 16}
    part = {"num_train_epochs": 1.5}
    for told, more in (("lr_scheduler_type 'linear' needs to know", {}), ("num_train_epochs is 1.5", part)):
        args = arguments(str(tmp_path / "out"), **more)
        with odb.Loader(unindexed, **given) as loader, pytest.raises(odb.ConfigError, match=told):
            StreamTrainer(model("mean"), args, train_loader=loader)
    args = arguments(str(tmp_path / "out"), lr_scheduler_type="constant", num_train_epochs=2, save_strategy="no")
    with odb.Loader(unindexed, **given) as loader:
        trainer = Watched(model("mean"), args, train_loader=loader)
        trainer.train()
        assert loader.report()["emitted"] == sum(map(len, trainer.updates)) == 120
        assert trainer.state.epoch == 2.0
    args = arguments(str(tmp_path / "out"), max_steps=3, warmup_steps=2, save_strategy="no")
    with odb.Loader(unindexed, **given) as loader:
        trainer = Watched(model("mean"), args, train_loader=loader, schedule="steps")
        assert trainer.train().global_step == 3


def tiny(kind: str) -> Any:
    small = {**TEXT, "hidden_size": 32, "intermediate_size": 32, "head_dim": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if kind == "gpt2":
            return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2))
        return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, attn_implementation=kind, **small))


@pytest.mark.parametrize("kind", ["sdpa", "eager", "gpt2"])
def test_attention_that_keeps_packed_samples_apart_is_taken(kind: str) -> None:
    tried = tiny(kind).train()
    check_packing(tried, torch.autocast("cpu", enabled=False))
    assert tried.training


class Mixing(nn.Module):
    """A model whose running mean goes over the whole row, as an attention that does not look at positions would."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny("sdpa")
        self.config = self.inner.config
        self.device = torch.device("cpu")

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, position_ids: Any = None, **others: Any) -> Any:
        return self.inner(input_ids=input_ids, **{**others, "use_cache": False})


def test_attention_that_mixes_packed_samples_is_refused(tmp_path: Path) -> None:
    with CASE.loader(layout="packed") as loader, pytest.raises(odb.ConfigError, match="lets a packed sample see"):
        StreamTrainer(Mixing(), arguments(str(tmp_path)), train_loader=loader)
    with CASE.loader(layout="padded") as loader:
        StreamTrainer(Mixing(), arguments(str(tmp_path)), train_loader=loader)


def test_four_rows_of_positions_need_mrope() -> None:
    rows = {"position_ids": torch.zeros(4, 1, 8, dtype=torch.int64)}
    with pytest.raises(odb.ConfigError, match="4 rows of positions for M-RoPE"):
        check_positions(tiny("sdpa"), rows)
    check_positions(tiny("sdpa"), {"position_ids": rows["position_ids"][0]})
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    assert has_mrope(Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, rope_parameters=rope, **TEXT)))


def test_the_stream_is_the_loaders_own_and_has_nothing_to_shard_by(tmp_path: Path) -> None:
    with CASE.loader() as loader, CASE.loader() as other:
        trainer = StreamTrainer(model("mean"), arguments(str(tmp_path)), train_loader=loader)
        stream = trainer.get_train_dataloader()
        for name in ("__len__", "sampler", "batch_sampler", "dataset", "set_epoch"):
            assert not hasattr(stream, name)
        for batch, expected in itertools.zip_longest(stream, other):
            assert odb.pop_step(batch) == odb.pop_step(expected)
            assert all(torch.equal(batch[name], value) for name, value in expected.items())
