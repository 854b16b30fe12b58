"""The accelerate adapter: what it leaves alone, refuses, saves and loads."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from ranks_support import run_ranks, values
from ranks_training import RATE, Case, EpochRecord, Watch, loss_of_all, losses, model, numbers_of
from torch.utils.data import DataLoader
from trainer_cases import DEADLINE, Scored, alone, check_alone, check_ranks, name_ranks, scored_loss

import odb_stream as odb
from odb_stream.adapters import accelerate as adapter
from odb_stream.adapters.torch import SampleSchedule, evaluate


def accelerator(steps: int = 1, **settings: Any) -> Accelerator:
    made = Accelerator(cpu=True, gradient_accumulation_steps=steps, **settings)
    made.sync_gradients = True  # the state is that of all Accelerators in the process
    return made


def test_accelerate_itself_gives_a_loader_back_unchanged() -> None:
    """So ``accelerator.prepare`` with a Loader does no harm, and nothing for it either."""
    with alone() as stream:
        assert accelerator().prepare(stream) is stream


def train_epoch(accelerator: Accelerator, stream: odb.Loader, own: Any, watch: Watch) -> None:
    """One epoch, as a user writes it; ``own`` is the model that accelerate wraps."""
    optimizer: Any = torch.optim.SGD(own.parameters(), lr=RATE)
    loader, wrapped, optimizer = adapter.prepare(accelerator, stream, own, optimizer)
    assert loader is stream
    for batch in loader:
        step = odb.pop_step(batch)
        with adapter.accumulate(accelerator, step, wrapped) as backward:
            backward(losses(wrapped(batch["input_ids"]), batch["labels"], "mean"))
            watch.step(step, batch)
            if accelerator.sync_gradients:
                watch.update(own)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_are_those_of_the_whole_window_the_short_last_one_too(steps: int) -> None:
    """Fails when the division by the accumulation is left in, or windows are counted by accelerate."""
    own, watch = model(), Watch()
    with alone(grad_accum=steps) as stream:
        for _ in range(2):
            train_epoch(accelerator(steps), stream, own, watch)
    check_alone(watch, own, steps)


def train(case: Case) -> EpochRecord:
    name_ranks()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.settings["grad_accum"])
    own = model()
    watch = Watch()
    with case.loader() as stream:
        train_epoch(accelerator, stream, own, watch)
    return watch.compared(own)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_process(ranks: int) -> None:
    """Fails when the loss is not scaled, the division by the accumulation is kept, or a short window is not stepped."""
    check_ranks(train, ranks)


def refused(message: str, stream: odb.Loader, *objects: Any, **settings: Any) -> None:
    with pytest.raises(odb.ConfigError, match=message):
        adapter.prepare(accelerator(**settings), stream, *objects)


def test_what_does_not_go_with_a_loader_is_refused_by_name() -> None:
    with alone(grad_accum=2) as stream:
        refused("gradient_accumulation_steps is 3 and the Loader's grad_accum is 2", stream, steps=3)
        for name in ("dispatch_batches", "split_batches"):
            config = DataLoaderConfiguration(**{name: True})
            refused(f"{name} is True", stream, steps=2, dataloader_config=config)
        refused("made of a Loader", stream, DataLoader(stream), steps=2)  # type: ignore[arg-type]
        refused("takes one Loader", stream, stream, steps=2)
        refused("must be a Loader", DataLoader([1]), steps=2)  # type: ignore[arg-type]


def prepare_unnamed() -> None:
    """On ranks that accelerate does not see."""
    with alone() as stream:
        adapter.prepare(Accelerator(cpu=True), stream)


def test_ranks_that_accelerate_does_not_see_are_refused() -> None:
    """On CPUs it starts torch.distributed, but trains each rank alone unless it is told ``cpu=True``."""
    for outcome in run_ranks(prepare_unnamed, 2, deadline=DEADLINE):
        assert outcome.error == "ConfigError"
        assert "built for 2 ranks, but accelerate runs 1" in outcome.text


def test_a_step_without_its_backward_is_refused() -> None:
    with alone() as stream:
        _, own = adapter.prepare(accelerating := accelerator(), stream, model())
        batch = next(iter(stream))
        step = odb.pop_step(batch)
        with pytest.raises(odb.ConfigError, match="without backward in step 0"), adapter.accumulate(accelerating, step):
            own(batch["input_ids"]).sum().backward()


def test_another_accumulation_than_the_loaders_is_found_at_the_step() -> None:
    with alone(grad_accum=3) as stream:
        adapter.prepare(accelerating := accelerator(3), stream)
        accelerating.gradient_accumulation_steps = 1
        step = odb.pop_step(next(iter(stream)))
        with pytest.raises(odb.ConfigError, match="sync_gradients=True"), adapter.accumulate(accelerating, step):
            pass


def test_a_learning_rate_by_samples_follows_the_samples() -> None:
    optimizer = torch.optim.SGD(model().parameters(), lr=2.0)
    with alone() as stream:
        _, prepared = adapter.prepare(accelerator(), stream, optimizer)
        schedule = SampleSchedule(prepared, lambda share: 1 - share, samples=200, samples_per_epoch=stream.samples)
        for batch in stream:
            step = odb.pop_step(batch)
            schedule.advance(step)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(2.0 * (1 - step.samples_seen / 200))


def test_a_checkpoint_carries_the_loader(tmp_path: Path) -> None:
    with alone() as stream:
        adapter.prepare(accelerating := accelerator(), stream)
        running = iter(stream)
        for _ in range(5):
            next(running)
        accelerating.save_state(str(tmp_path))
        rest = [numbers_of(batch) for batch in running if odb.pop_step(batch)]
    assert json.loads(adapter.state_path(tmp_path, 0).read_text())["loader"]["step"] == 5
    with alone() as stream:
        adapter.prepare(accelerating := accelerator(), stream)
        accelerating.load_state(str(tmp_path))
        assert [numbers_of(batch) for batch in stream if odb.pop_step(batch)] == rest


def test_a_checkpoint_inside_a_window_is_refused(tmp_path: Path) -> None:
    with alone(grad_accum=3) as stream:
        _, own = adapter.prepare(accelerating := accelerator(3), stream, model())
        for batch in islice(stream, 2):
            with adapter.accumulate(accelerating, odb.pop_step(batch), own) as backward:
                backward(own(batch["input_ids"]).sum())
            with pytest.raises(odb.StateError, match="inside an accumulation window"):
                accelerating.save_state(str(tmp_path))


def test_a_folder_without_the_loaders_state_is_refused(tmp_path: Path) -> None:
    accelerator().save_state(str(tmp_path))
    with alone() as stream:
        adapter.prepare(accelerating := accelerator(), stream)
        with pytest.raises(odb.StateError, match="has no loader state"):
            accelerating.load_state(str(tmp_path))


def evaluate_and_save(folder: str, steps: int) -> tuple[float, list[int]]:
    """The loss over 41 samples, two of the ranks' steps in training, and the state after them in a folder."""
    name_ranks()
    accelerator = Accelerator(cpu=True)
    with alone(41, shuffle=False, rebalance=False, budget=odb.Budget(1024)) as held_out:
        scored = accelerator.prepare(Scored())
        loss = evaluate(scored, held_out)
    with alone() as stream:
        adapter.prepare(accelerator, stream)
        seen = [n for batch in islice(stream, steps) if odb.pop_step(batch).samples for n in numbers_of(batch)]
        accelerator.save_state(folder)
        return loss, seen


def test_two_ranks_evaluate_as_one_and_one_goes_on_from_their_checkpoint(tmp_path: Path) -> None:
    """Fails when evaluation takes the mean of steps, or a state is loaded as that of another number of ranks."""
    outcomes = values(run_ranks(evaluate_and_save, 2, str(tmp_path), 3, deadline=DEADLINE))
    expected = loss_of_all(Scored(), range(41), scored_loss)
    assert [loss for loss, _ in outcomes] == pytest.approx([expected] * 2, rel=1e-12)
    with alone() as stream:
        adapter.prepare(accelerating := accelerator(), stream)
        accelerating.load_state(str(tmp_path))
        rest = [n for batch in stream if odb.pop_step(batch) for n in numbers_of(batch)]
    assert sorted(rest + [n for _, seen in outcomes for n in seen]) == list(range(100))
