"""A run that goes on from a Trainer checkpoint makes the steps that would have come, on any number of ranks."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_support import HfCase, Watched, arguments, model
from ranks_support import run_ranks, values
from ranks_training import RATE
from trainer_cases import DEADLINE, alone, name_ranks

import odb_stream as odb
from odb_stream.adapters.huggingface.callback import TRAINER_STATE, find
from odb_stream.adapters.loader_states import state_name, write_state

CASE = HfCase((130,), 2, settings={"grad_accum": 3, "layout": "packed"}, arguments={"lr_scheduler_type": "linear"})
SAVES = {"save_strategy": "steps", "save_steps": 1}


def run(folder: Path, resume: Any = None, case: HfCase = CASE, **given: Any) -> Watched:
    """Train in a folder, saving each step."""
    args = replace(case, arguments={**case.arguments, **SAVES, **given})
    with case.loader() as loader:
        trainer = Watched(model("mean"), args.args(str(folder)), train_loader=loader)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Watched) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run that was never stopped, with a checkpoint of each step."""
    return run(tmp_path_factory.mktemp("through"))


def epoch_end(trainer: Watched) -> int:
    """The optimizer step that ended the first epoch."""
    return list(itertools.accumulate(len(update) for update in trainer.updates)).index(130) + 1


@pytest.mark.parametrize("place", ["first", "within", "end of epoch", "next epoch", "last"])
def test_what_follows_a_checkpoint_is_what_would_have_come(through: Watched, place: str, tmp_path: Path) -> None:
    ends, steps = epoch_end(through), len(through.updates)
    assert 1 < ends < steps == 2 * ends
    step = {"first": 1, "within": ends - 2, "end of epoch": ends, "next epoch": ends + 1, "last": steps}[place]
    shutil.copytree(Path(through.args.output_dir, f"checkpoint-{step}"), tmp_path / f"checkpoint-{step}")
    again = run(tmp_path, str(tmp_path / f"checkpoint-{step}"))
    assert again.updates == through.updates[step:]
    assert torch.equal(weights(again), weights(through))
    assert (again.state.global_step, again.state.epoch) == (steps, 2.0)
    named = ("loss", "learning_rate", "samples_seen", "epoch", "step")
    for one, other in zip(losses(again), losses(through), strict=True):
        assert {name: one[name] for name in named} == {name: other[name] for name in named}


def losses(trainer: Watched) -> list[dict[str, Any]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_a_bound_on_steps_stops_and_the_rest_follows(through: Watched, tmp_path: Path) -> None:
    first = run(tmp_path, max_steps=3)
    assert first.state.global_step == 3
    again = run(tmp_path, True)
    assert first.updates + again.updates == through.updates
    assert torch.equal(weights(again), weights(through))


def test_a_run_that_is_done_stays_so(through: Watched) -> None:
    again = run(Path(through.args.output_dir), True)
    assert again.updates == []
    assert again.state.global_step == len(through.updates)


def test_the_last_whole_checkpoint_is_taken(through: Watched, tmp_path: Path) -> None:
    with pytest.raises(odb.StateError, match="no checkpoint that is whole"):
        run(tmp_path, True)
    for step in (2, 3, 4, 5):
        shutil.copytree(Path(through.args.output_dir, f"checkpoint-{step}"), tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-5" / state_name(0, 1)).unlink()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"epoch": 1')
    assert find(True, str(tmp_path), odb.World()) == tmp_path / "checkpoint-3"
    for step, told in ((5, "saving was cut off"), (4, "trainer_state.json is cut off"), (9, "no trainer_state.json")):
        with pytest.raises(odb.StateError, match=told):
            run(tmp_path, str(tmp_path / f"checkpoint-{step}"))


def test_files_of_another_number_of_ranks_are_not_mistaken(tmp_path: Path) -> None:
    (tmp_path / TRAINER_STATE).write_text("{}")
    for rank in range(2):
        write_state(tmp_path, odb.World(rank, 2), {})
    (tmp_path / state_name(0, 2)).unlink()
    with pytest.raises(odb.StateError, match=r"of 2 ranks those of rank \[0\] are missing"):
        find(str(tmp_path), "", odb.World())
    write_state(tmp_path, odb.World(0, 1), {})
    assert [path.name for path in tmp_path.glob("odb_*")] == [state_name(0, 1)]


def shared(folder: str, steps: int, resume: bool) -> list[list[int]]:
    """Train on numbers that all ranks share; the samples of each update."""
    name_ranks()
    given = {"learning_rate": RATE, "max_steps": steps, "save_strategy": "steps", "save_steps": 2}
    args = arguments(folder, num_train_epochs=2, lr_scheduler_type="cosine", **given)
    with alone(240) as loader:
        trainer = Watched(model("mean"), args, train_loader=loader)
        trainer.train(resume_from_checkpoint=resume)
        assert resume is False or trainer.state.epoch == 2.0
    return trainer.updates


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_it_goes_on_with_another_number_of_ranks(before: int, after: int, tmp_path: Path) -> None:
    """The rest of the epoch, each sample once, then a whole epoch."""

    def on(ranks: int, steps: int, resume: bool) -> list[int]:
        if ranks == 1:
            held = [shared(str(tmp_path), steps, resume)]
        else:
            held = values(run_ranks(shared, ranks, str(tmp_path), steps, resume, deadline=DEADLINE))
        return [number for updates in held for update in updates for number in update]

    done = on(before, 6, False)
    assert 20 < len(done) < 200
    assert len(list(tmp_path.glob(f"checkpoint-6/odb_loader_*_of_{before:05d}.json"))) == before
    rest = on(after, -1, True)
    assert sorted(done + rest) == sorted([*range(240)] * 2)
