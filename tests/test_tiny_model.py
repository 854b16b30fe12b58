"""The tiny model: weights from the seed alone, the scaled loss, and its limits."""

import pytest
import torch

from odb_stream.errors import OdbStreamError
from odb_stream.sample import StepInfo
from odb_stream.tiny_model import TinyTrainer, tiny_qwen3

COUNTS = dict.fromkeys(
    ("samples", "tokens", "padded_tokens", "supervised_tokens", "global_samples", "global_tokens", "samples_seen"), 0
)


def info(loss_scale):
    return StepInfo(epoch=2, step=7, refs=(), global_supervised_tokens=0, loss_scale=loss_scale, **COUNTS)


def batch(*tokens):
    ids = torch.tensor([tokens])
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def test_the_weights_depend_on_the_seed_alone():
    state = torch.random.get_rng_state()
    first = tiny_qwen3(50, seed=1).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(1)
    again, other = tiny_qwen3(50, seed=1).state_dict(), tiny_qwen3(50, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_size_is_as_documented():
    assert 100_000 < TinyTrainer(2_048, seed=0).parameters < 200_000


def test_the_loss_scale_is_applied():
    whole, half = TinyTrainer(50, seed=0), TinyTrainer(50, seed=0)
    assert half.train(batch(1, 2, 3), info(0.5)) == pytest.approx(whole.train(batch(1, 2, 3), info(1.0)) / 2)


def test_an_unknown_token_and_an_infinite_loss_are_errors():
    trainer = TinyTrainer(50, seed=0)
    with pytest.raises(OdbStreamError, match="step 7 of epoch 2 holds token 50"):
        trainer.train(batch(1, 50), info(1.0))
    with pytest.raises(OdbStreamError, match="step 7 of epoch 2 is inf"):
        trainer.train(batch(1, 2), info(float("inf")))
