"""The budget that a memory allows: sizes in words, parameters as transformers counts them, bytes a token by hand."""

import json

import pytest
from inspection_data import pipeline, some_lengths

from odb_stream.errors import ConfigError
from odb_stream.inspection import Accelerator, ModelSize, inspect, parse_bytes

TINY = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 160, "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size"),
    [("40GiB", 40 * 2**30), ("80GB", 80 * 10**9), ("512M", 2**29), ("1.5 gib", 3 * 2**29), ("7", 7), ("9b", 9)],
)
def test_sizes_in_words(text, size):
    assert parse_bytes("--memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "40 GiBs", "-1GiB", "forty", "0", "0.1B", "1e9"])
def test_a_text_that_is_not_a_size_is_named(text):
    with pytest.raises(ConfigError, match="--memory is"):
        parse_bytes("--memory", text)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_model(tied):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**TINY, tie_word_embeddings=tied)
    counted = sum(weight.numel() for weight in Qwen3ForCausalLM(config).parameters())
    norms_of_queries_and_keys = 3 * 2 * 32
    assert ModelSize.of(config.to_dict()).parameters == counted - norms_of_queries_and_keys


def test_bytes_a_token_by_hand():
    size = ModelSize.of(TINY)
    layer = 2 * (4 * 64 + 2 * 4 * 32 + 2 * 2 * 32 + 4 * 160)
    assert size.token_bytes(checkpointing=False) == 3 * layer + 8 * 500
    assert size.token_bytes(checkpointing=True) == 3 * 2 * 64 + layer + 8 * 500


def test_a_nested_configuration_and_a_vision_encoder():
    vision = {"depth": 2, "hidden_size": 10, "intermediate_size": 30, "patch_size": 16}
    nested = ModelSize.of({"text_config": TINY, "vision_config": vision, "tie_word_embeddings": True})
    plain = ModelSize.of({**TINY, "tie_word_embeddings": True})
    assert nested.parameters == plain.parameters + 2 * (4 * 100 + 2 * 300)
    fewer = {key: value for key, value in TINY.items() if key not in ("head_dim", "num_key_value_heads")}
    assert (ModelSize.of(fewer).head_dim, ModelSize.of(fewer).num_key_value_heads) == (16, 4)


REFUSED = {
    "a number is missing": ({key: TINY[key] for key in TINY if key != "vocab_size"}, "vocab_size is None"),
    "text instead of a number": ({**TINY, "hidden_size": "64"}, "hidden_size is '64'"),
    "a mixture of experts": ({**TINY, "num_experts": 8}, "num_experts: 8"),
    "a list": ([TINY], "a list"),
    "no JSON": (None, "not JSON"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_an_incomplete_configuration_is_refused(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config) if config else "{")
    with pytest.raises(ConfigError, match=message) as caught:
        ModelSize.from_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    with pytest.raises(ConfigError, match=r"gone\.json"):
        ModelSize.from_config(tmp_path / "gone.json")


def test_the_budget_is_what_the_states_leave():
    given = Accelerator(memory=100_000_000, model=TINY, bytes_per_parameter=2.5)
    size = ModelSize.of(TINY)
    found = given.budget()
    states = round(size.parameters * 2.5)
    exact = (90_000_000 - states) / size.token_bytes(checkpointing=False)
    assert found.state_bytes == states
    assert found.tokens % 256 == 0
    assert 0 <= exact - found.tokens < 256
    with_checkpointing = Accelerator(memory=100_000_000, model=TINY, checkpointing=True).budget()
    assert with_checkpointing.token_bytes == size.token_bytes(checkpointing=True) < found.token_bytes
    measured = Accelerator(memory=100_000_000, token_bytes=1_000).budget()
    assert (measured.state_bytes, measured.tokens, measured.parameters) == (0, 89_856, None)
    assert Accelerator(memory=1_000, model=TINY).budget().tokens == 0
    assert Accelerator(memory=1_000_000, token_bytes=10_000).budget().tokens == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"memory": 0, "token_bytes": 5}, "memory is 0"), ({"memory": 5}, "--model"),
     ({"memory": 5, "token_bytes": 0}, "token_bytes is 0"),
     ({"memory": 5, "model": TINY, "bytes_per_parameter": -1}, "bytes_per_parameter is -1")],
    ids=str,
)  # fmt: skip
def test_an_impossible_accelerator_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Accelerator(**settings)


def test_the_suggested_budget_is_used_unless_another_is_given():
    given = pipeline(some_lengths(40))
    accelerator = Accelerator(memory=600_000, token_bytes=1_000)
    found = inspect(given, window=8, accelerator=accelerator)
    assert found.settings.budget == found.suggestion.budget.tokens == 512
    assert found.suggestion.oversize == found.samples.oversize
    other = inspect(given, window=8, budget=3_000, accelerator=accelerator)
    assert (other.settings.budget, other.suggestion.budget.tokens) == (3_000, 512)
    assert other.suggestion.oversize == sum(length > 512 for length in some_lengths(40))
    nothing = inspect(given, window=8, accelerator=Accelerator(memory=1_000, token_bytes=1_000))
    assert (nothing.settings.budget, nothing.suggestion.budget.tokens) == (16_384, 0)
    assert inspect(given, window=8).suggestion.budget is None
