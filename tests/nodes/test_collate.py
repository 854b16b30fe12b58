"""Batches: what they hold, and that a model sees each sample alone: logits and gradients equal to separate runs."""

import numpy as np
import pytest
import torch
from loader_data import step_info
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from odb_stream.batching.cost import Footprint
from odb_stream.config import Budget
from odb_stream.errors import ConfigError
from odb_stream.nodes.collate import STEP_KEY, packed, padded, pop_step
from odb_stream.sample import PreparedSample, SampleRef


def sample(index: int, ids: list[int], labels: list[int]) -> PreparedSample:
    supervised = sum(label != -100 for label in labels[1:])
    return PreparedSample(SampleRef(0, 0, index, -1), np.array(ids, np.int32), np.array(labels, np.int32), supervised)


def random_samples(seed: int, lengths: list[int]) -> list[PreparedSample]:
    rng = np.random.Generator(np.random.PCG64(seed))
    samples = []
    for index, length in enumerate(lengths):
        ids = rng.integers(3, 90, length)
        labels = np.where(rng.random(length) < 0.6, ids, -100)
        labels[-1], labels[0] = ids[-1], -100
        samples.append(sample(index, ids.tolist(), labels.tolist()))
    return samples


def footprint(layout, multiple=1):
    return Footprint(layout, Budget(1024), multiple)


TWO = [sample(0, [5, 6, 7], [-100, 6, 7]), sample(1, [8, 9], [-100, 9])]


def test_padded_rows_are_filled_to_the_multiple():
    batch = padded(TWO, footprint("padded", multiple=4), pad_token=1)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 1], [8, 9, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100], [-100, 9, -100, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_packed_row_restarts_positions_and_its_filling_is_a_sequence_without_labels():
    batch = packed(TWO, footprint("packed", multiple=8), pad_token=1)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5, 8]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert (batch["max_length_q"], batch["max_length_k"], batch["use_cache"]) == (3, 3, False)
    assert "attention_mask" not in batch
    exact = packed(TWO, footprint("packed"), pad_token=1)
    assert exact["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert exact["cu_seq_lens_q"].tolist() == [0, 3, 5]


def test_pop_step_takes_the_info_once():
    info = step_info()
    batch = {"input_ids": torch.zeros(1), STEP_KEY: info}
    assert pop_step(batch) is info
    assert list(batch) == ["input_ids"]
    with pytest.raises(ConfigError, match="no step info in a batch with keys"):
        pop_step(batch)


def tiny_model(family: str, attention: str) -> torch.nn.Module:
    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "attn_implementation": attention,
    }
    torch.manual_seed(7)
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(head_dim=8, **shape)).train()
    return LlamaForCausalLM(LlamaConfig(**shape)).train()


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of next-token losses of rows of logits."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("layout", "multiple"), [("packed", 1), ("packed", 16), ("padded", 1), ("padded", 16)])
def test_a_batch_equals_separate_runs(family, attention, layout, multiple):
    model = tiny_model(family, attention)
    samples = random_samples(3, [23, 5, 1, 40, 12])
    build = packed if layout == "packed" else padded
    batch = build(samples, footprint(layout, multiple), pad_token=0)
    labels = batch.pop("labels")
    together = model(**batch).logits
    alone = [
        model(input_ids=torch.tensor(s.input_ids, dtype=torch.int64)[None], use_cache=False).logits for s in samples
    ]
    start = 0
    for row, (part, one) in enumerate(zip(alone, samples, strict=True)):
        packed_row, padded_row = together[:, start : start + one.length], together[row : row + 1, : one.length]
        mine = packed_row if layout == "packed" else padded_row
        assert torch.allclose(mine, part, atol=1e-5), f"sample {row} sees its neighbours"
        start += one.length
    separate = sum(
        token_losses(part, torch.tensor(one.labels, dtype=torch.int64)[None])
        for part, one in zip(alone, samples, strict=True)
    )
    supervised = sum(one.supervised for one in samples)
    losses = (token_losses(together, labels) / supervised, separate / supervised)
    for mine, theirs in zip(*(gradients(model, loss) for loss in losses), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
