"""The Loader as a training loop meets it: coverage, budget, determinism, the first batch, early ends, the report."""

import gc
import subprocess
import sys

import pytest
import torch
from loader_data import Ready, drop_all, drop_thirds, fail_at_fifty, jitter, loader
from waiting import PATIENCE, background_threads

import odb_stream as odb
from odb_stream.checkpoint.fit import unseal
from odb_stream.checkpoint.reshard import place_of
from odb_stream.sources.shard_reading import SHUFFLE_BLOCK


def epoch(stream):
    """One epoch as comparable steps."""
    steps = []
    for batch in stream:
        info = odb.pop_step(batch)
        steps.append((info, {key: value.tolist() if torch.is_tensor(value) else value for key, value in batch.items()}))
    return steps


def indices(steps):
    return [ref.index for info, _ in steps for ref in info.refs]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_each_epoch_emits_every_sample_once_within_the_budget(layout):
    with loader(Ready(300), layout=layout) as stream:
        first, second = epoch(stream), epoch(stream)
        assert stream.report()["max_delay"] <= 32, "the larger of both epochs, not their sum"
    assert sorted(indices(first)) == sorted(indices(second)) == list(range(300))
    assert indices(first) != indices(second)
    assert all(batch["input_ids"].__len__() * len(batch["input_ids"][0]) <= 128 for _, batch in first + second)


def test_step_infos_agree_with_the_batches_and_the_report_adds_up():
    dataset = Ready(300)
    with loader(dataset) as stream:
        steps = epoch(stream)
        report = stream.report()
    seen = 0
    for number, (info, batch) in enumerate(steps):
        seen += info.samples
        rows = [row[: sum(mask)] for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
        assert rows == [dataset[ref.index]["input_ids"].tolist() for ref in info.refs]
        assert (info.epoch, info.step, info.samples_seen) == (0, number, seen)
        assert info.tokens == info.global_tokens == sum(map(len, rows))
        assert info.padded_tokens == len(rows) * len(batch["input_ids"][0])
        assert info.supervised_tokens == sum(label != -100 for row in batch["labels"] for label in row[1:])
        assert info.loss_scale == 1.0
    infos = [info for info, _ in steps]
    real, padded = sum(i.tokens for i in infos), sum(i.padded_tokens for i in infos)
    assert report["steps"] == len(infos)
    assert report["padding_ratio"] == pytest.approx(1 - real / padded)
    assert report["critical_ratio"] == pytest.approx(padded / real)
    assert report["real_utilisation"] == pytest.approx(real / (len(infos) * 128))
    assert 1 <= report["max_delay"] <= 32
    assert report["idle_steps"] == 0
    assert set(report["wait_seconds"]) == {"trainer", "workers", "read", "room", "peers"}
    assert report["global"]["emitted"] == 300


def test_the_seed_and_nothing_else_decides_the_batches():
    def run(*stages, **settings):
        with loader(Ready(200), *stages, **settings) as stream:
            return epoch(stream) + epoch(stream)

    def orders(**settings):
        """Of two epochs: of the same samples, so that nothing but the order can differ."""
        order = indices(run(**settings))
        return order[:200], order[200:]

    # The order of reading and that of steps; without shuffling the order of steps only.
    for shuffle in (True, False):
        drawn = [*orders(seed=5, shuffle=shuffle), *orders(seed=6, shuffle=shuffle)]
        assert len(set(map(tuple, drawn))) == 4

    reference = run(jitter, seed=5)
    assert run(jitter, seed=5) == reference
    assert run(jitter, seed=6) != reference
    assert run(jitter, seed=5, max_bytes=1) == reference


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_worker_count_changes_no_batch(workers):
    def run(count):
        with loader(Ready(600), jitter, drop_thirds, workers=count, seed=3) as stream:
            return epoch(stream) + epoch(stream)

    assert run(workers) == run(0)


def test_without_shuffling_samples_arrive_in_order_and_an_ended_iterator_stays_ended():
    with loader(Ready(40), shuffle=False, window=1, lookahead=1) as stream:
        iterator = iter(stream)
        assert indices(epoch(iterator)) == list(range(40))
        assert next(iterator, None) is None


def test_drops_are_counted_by_reason():
    with loader(Ready(99), drop_thirds) as stream:
        steps = epoch(stream)
        report = stream.report()
    assert sorted(indices(steps)) == [i for i in range(99) if i % 3]
    assert report["dropped"] == {"every_third": 33}
    assert report["emitted"] == 66
    assert report["abandoned"] == 0


@pytest.mark.parametrize(
    ("stage", "message"),
    [(drop_all, "all 100 samples.*'unwanted': 100"), (fail_at_fifty, "fail_at_fifty.*fifty is not allowed.*sample 50")],
)
def test_an_epoch_without_a_sample_left_and_a_failing_stage_are_errors(stage, message):
    with loader(Ready(100), stage) as stream, pytest.raises(odb.StageError, match=message):
        epoch(stream)


def test_an_empty_dataset_is_an_empty_epoch():
    with loader(Ready(0)) as stream:
        assert epoch(stream) == []
        assert stream.samples == 0


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_oversize_samples_are_an_error_a_drop_or_alone(layout):
    def run(oversize):
        with loader(Ready(100), layout=layout, budget=odb.Budget(tokens=30), oversize=oversize) as stream:
            return epoch(stream), stream.report()

    with pytest.raises(odb.OversizeError, match=r"tokens, but the budget is 30; raise Budget"):
        run("error")
    over = sum(len(Ready(100)[i]["input_ids"]) > 30 for i in range(100))
    steps, report = run("drop")
    assert report["dropped"] == {"oversize": over}
    assert len(indices(steps)) == 100 - over
    steps, report = run("solo")
    assert report["solo"] == over
    assert sorted(indices(steps)) == list(range(100))
    assert all(info.samples == 1 for info, _ in steps if info.padded_tokens > 30)


def test_a_break_abandons_the_rest_and_the_next_loop_is_the_next_epoch():
    with loader(Ready(300)) as stream:
        for batch in stream:
            first = odb.pop_step(batch)
            break
        steps = epoch(stream)
        report = stream.report()
    assert {info.epoch for info, _ in steps} == {1}
    assert sorted(indices(steps)) == list(range(300))
    assert report["abandoned"] == 300 - first.samples
    assert report["emitted"] + report["abandoned"] == 600


def test_a_new_iterator_ends_the_old_one_and_forgets_the_states_of_its_epoch():
    with loader(Ready(300)) as stream:
        old = iter(stream)
        next(old), next(old)
        assert stream.state_dict(step=1) == stream.state_dict()
        new = iter(stream)
        state = stream.state_dict()
        assert (state["epoch"], state["step"]) == (1, 0)
        with pytest.raises(odb.StateError, match=r"after step 1 .*none yet"):
            stream.state_dict(step=1)
        with pytest.raises(odb.StateError, match="iterator of epoch 0 was ended"):
            next(old)
        assert odb.pop_step(next(new)).epoch == 1


def test_close_ends_the_thread_and_a_closed_loader_says_so(monkeypatch):
    monkeypatch.setattr("odb_stream.loader.loader.JOIN_SECONDS", PATIENCE)
    others = set(background_threads())
    stream = loader(Ready(3000))
    next(iterator := iter(stream))
    stream.close()
    stream.close()
    assert set(background_threads()) <= others
    with pytest.raises(odb.ConfigError, match="closed"):
        iter(stream)
    with pytest.raises(odb.StateError):
        next(iterator)


def test_a_dropped_iterator_ends_its_thread():
    others = set(background_threads())
    stream = loader(Ready(3000))
    next(iter(stream))
    gc.collect()
    for thread in set(background_threads()) - others:
        thread.join(PATIENCE)
    assert set(background_threads()) <= others
    stream.close()


@pytest.mark.parametrize("size", [3_000, 100_000])
@pytest.mark.parametrize("length", [5, 60, 2_000])
def test_the_first_batch_needs_few_records(size: int, length: int) -> None:
    """At default settings, however many records there are. Fails with: a lookahead that begins with 8 groups, or a
    window that begins with 1,024 samples."""
    rows = [{"input_ids": [1] * length}] * size
    with odb.Loader(odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(tokens=16_384)) as stream:
        odb.pop_step(next(iter(stream)))
        planned = place_of(unseal(stream.state_dict()).state.place).round.window.received
    under_way = 64  # a chunk is being prepared while the round is planned
    assert -(-(planned + under_way) // SHUFFLE_BLOCK) * SHUFFLE_BLOCK <= 1_024


EXITS = """
import odb_stream as odb

rows = [{"input_ids": [1, 2, 3]}] * 5_000
loader = odb.Loader(odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(64), closure=%r, quota=%r)
batches = iter(loader)
for _ in range(3):
    next(batches)
"""


@pytest.mark.parametrize(("closure", "quota"), [("join", None), ("quota", 4_000)])
def test_a_program_may_exit_mid_epoch(closure: str, quota: int | None) -> None:
    """Quietly. An iterator that was closed by its ``__del__`` only met an interpreter half taken down."""
    command = [sys.executable, "-c", EXITS % (closure, quota)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipeline_refuses_what_is_no_source_or_stage():
    with pytest.raises(odb.ConfigError, match="must be a source such as Shards"):
        odb.Pipeline([1, 2, 3])
    with pytest.raises(odb.ConfigError, match="stage 0 of the pipeline is 'tokenize'"):
        odb.Pipeline(odb.FromDataset(Ready(2)), "tokenize")
    with pytest.raises(odb.ConfigError, match="must be a Pipeline"):
        odb.Loader(odb.FromDataset(Ready(2)), budget=odb.Budget(8))
