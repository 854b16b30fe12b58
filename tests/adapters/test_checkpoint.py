"""Checkpoints of a plain loop: whole or not at all, the newest whole one found, on any number of ranks."""

import json
import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_data import VOCABULARY
from ranks_support import run_ranks, values
from ranks_training import model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from trainer_cases import alone

import odb_stream as odb
from odb_stream.adapters.checkpoint import Stateful, load, save

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
"""What Python tells an audit hook before it changes a folder; ``open`` is told too."""


class Value(torch.nn.Module):
    """A part whose state is one number."""

    def __init__(self, number: float = -1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(float(number)))


class StillLoader:
    """A loader as checkpoints see it, which stands after a step and runs no thread, so that a test can fork."""

    def __init__(self, steps: int) -> None:
        with alone() as loader:
            for batch in islice(loader, steps):
                odb.pop_step(batch)
                self._state: dict[str, Any] = loader.state_dict()
        self.world = odb.World()

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


def save_value(folder: Path, number: int, **given: Any) -> Path:
    """Save a run whose model and whose loader have made so many steps."""
    loader: Any = StillLoader(number)
    return save(folder, loader, step=number, shared={"model": Value(number)}, own={"own": Value(-number)}, **given)


def load_value(folder: Path) -> int | None:
    """The step of the checkpoint that is found; all of its parts must be of that step."""
    loader: Any = StillLoader(0)
    shared, own = Value(), Value()
    loaded = load(folder, loader, shared={"model": shared}, own={"own": own})
    if loaded is None:
        return None
    assert (shared.weight.item(), own.weight.item(), loader.state_dict()["step"]) == (
        loaded.step, -loaded.step, loaded.step,
    )  # fmt: skip
    return loaded.step


def killed_at(change: int, folder: Path, number: int, *, torn: bool) -> bool:
    """Save in a process of its own that dies at its n-th change of files; whether it died.

    Torn, it dies with a file opened and a part of it written, else before the change.
    """
    loader: Any = StillLoader(number)
    child = os.fork()
    if not child:
        left = change

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if event in CHANGES or (event == "open" and str(folder) in str(args[0])):
                left -= 1
                if not left:
                    if torn and event == "open" and args[1] and args[1][0] in "wx":
                        os.write(os.open(args[0], os.O_WRONLY | os.O_CREAT), b"{")
                    os._exit(9)

        sys.addaudithook(count)
        save(folder, loader, step=number, shared={"model": Value(number)}, own={"own": Value(-number)}, keep=1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("torn", [False, True])
def test_a_save_that_is_killed_at_any_point_leaves_the_last_whole_checkpoint(tmp_path: Path, torn: bool) -> None:
    """Fails when the manifest is written first, or in place, or old checkpoints are removed before the new one."""
    base = tmp_path / "base"
    for number in (1, 2):
        save_value(base, number)
    found: list[int] = []
    died = True
    while died:
        folder = tmp_path / str(len(found))
        shutil.copytree(base, folder)
        died = killed_at(len(found) + 1, folder, 3, torn=torn)
        found.append(load_value(folder) or 0)
        save_value(folder, 4, keep=1)
        assert len(list(folder.iterdir())) == 1, "the next save removes what was left"
    assert len(found) > 12
    assert found == sorted(found)
    assert (found[0], found[-1]) == (2, 3)


def test_a_first_save_that_is_killed_leaves_a_run_that_starts_again(tmp_path: Path) -> None:
    change = 1
    while killed_at(change, tmp_path, 3, torn=True):
        change += 1
        assert load_value(tmp_path) in (None, 3)
        shutil.rmtree(tmp_path)
    assert change > 8


def test_the_newest_is_the_last_that_was_saved_and_only_so_many_are_kept(tmp_path: Path) -> None:
    """A run that went back to an earlier step goes on from there."""
    assert load_value(tmp_path / "none yet") is None
    for number in (2, 4, 3):
        saved = save_value(tmp_path, number, keep=2, notes={"losses": [number]})
    assert load_value(tmp_path) == 3
    assert load_value(saved) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"save-000002-step-4", "save-000003-step-3"}
    loader: Any = StillLoader(0)
    loaded = load(tmp_path, loader, shared={"model": Value()})
    assert loaded is not None
    assert (loaded.folder, loaded.ranks, loaded.notes) == (saved, 1, {"losses": [3]})


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("shared.pt", None, "shared.pt is missing"),
        ("own_00000_of_00001.pt", "cut", "own_00000_of_00001.pt is missing or cut"),
        ("odb_loader_00000_of_00001.json", None, "odb_loader_00000_of_00001.json is missing"),
        ("checkpoint.json", "{", "checkpoint.json is damaged"),
        ("checkpoint.json", '{"format": 7, "files": {}}', "has format 7"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_only_for_an_earlier_one(
    tmp_path: Path, name: str, text: str | None, told: str
) -> None:
    path = save_value(tmp_path, 2) / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(odb.StateError, match=told):
        load_value(tmp_path)
    with pytest.raises(odb.StateError, match=told):
        load_value(next(tmp_path.iterdir()))
    save_value(tmp_path / "other", 1)
    (tmp_path / "other" / "save-000001-step-1").rename(tmp_path / "save-000000-step-1")
    assert load_value(tmp_path) == 1


def test_a_file_that_torch_cannot_read_is_refused(tmp_path: Path) -> None:
    path = save_value(tmp_path, 2) / "shared.pt"
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(odb.StateError, match=r"shared\.pt cannot be read"):
        load_value(tmp_path)


def test_folders_of_another_kind_are_refused(tmp_path: Path) -> None:
    trainers = tmp_path / "trainer" / "checkpoint-3"
    shutil.copytree(save_value(tmp_path / "ours", 1), trainers)
    for folder in (trainers, trainers.parent):
        with pytest.raises(odb.StateError, match="a trainer's adapter"):
            load_value(folder)
    with pytest.raises(odb.StateError, match="is a file"):
        load_value(trainers / "shared.pt")
    with pytest.raises(odb.StateError, match="not a whole checkpoint"):
        load_value(tmp_path / "ours" / "save-000009-step-9")
    with pytest.raises(odb.ConfigError, match="s3://bucket"):
        save("s3://bucket/run", alone(), step=1)


def test_other_parts_are_refused(tmp_path: Path) -> None:
    save_value(tmp_path, 2)
    loader: Any = StillLoader(0)
    with pytest.raises(odb.StateError, match="'optimizer'"):
        load(tmp_path, loader, shared={"model": Value(), "optimizer": Value()})
    with pytest.raises(odb.ConfigError, match=r"shared\['losses'\]"):
        save(tmp_path, loader, step=3, shared={"losses": []})  # type: ignore[dict-item]


def test_a_save_inside_an_accumulation_window_is_refused(tmp_path: Path) -> None:
    with alone(grad_accum=3) as loader:
        for number, batch in enumerate(islice(loader, 4)):
            if odb.pop_step(batch).accum_last:
                save(tmp_path, loader, step=number)
            else:
                with pytest.raises(odb.StateError, match="inside an accumulation window"):
                    save(tmp_path, loader, step=number)
    assert len(list(tmp_path.iterdir())) == 1


# ----------------------------------------------------------------------------------------------------------------------
# Real ranks


def count_tokens(folder: str, stop: int | None) -> list[float]:
    """Train weights that end as the count of each supervised token, whatever the batches; saved after each step.

    The loss is linear, and the rate of a step is its number of tokens: the sum over all steps is one over all tokens.
    """
    counts: Any = torch.nn.Embedding(VOCABULARY, 1, _weight=torch.zeros(VOCABULARY, 1))
    wrapped = DistributedDataParallel(counts) if dist.is_initialized() else counts
    shared: dict[str, Stateful] = {"model": wrapped}
    with alone(rebalance=False) as loader:
        loaded = load(folder, loader, shared=shared)
        for batch in islice(loader, stop):
            step = odb.pop_step(batch)
            supervised = batch["labels"][:, 1:][batch["labels"][:, 1:] >= 0]
            (wrapped(supervised).mean() * step.loss_scale * step.global_supervised_tokens).backward()
            counts.weight.data += counts.weight.grad
            counts.weight.grad = None
            save(folder, loader, step=(loaded.step if loaded else 0) + step.step, shared=shared, keep=1)
    found: list[float] = counts.weight.detach().flatten().tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks_ends_with_the_weights_of_one_run(before: int, after: int, tmp_path: Path) -> None:
    expected = count_tokens(str(tmp_path / "whole"), None)
    assert sum(expected) > 1000
    partly = values(run_ranks(count_tokens, before, str(tmp_path / "cut"), 3))
    assert 0 < sum(partly[0]) < sum(expected)
    for weights in values(run_ranks(count_tokens, after, str(tmp_path / "cut"), None)):
        assert weights == pytest.approx(expected, abs=1e-2)


def load_ranks(folder: str, late: bool = False) -> int | None:
    """With ``late`` each rank looks at a folder of its own, as if its file system were late."""
    with alone() as loader:
        loaded = load(f"{folder}/{dist.get_rank()}" if late else folder, loader, shared={"model": Value()})
    return None if loaded is None else loaded.step


def save_ranks(folder: str, steps: list[int], late: int = 0) -> None:
    """Save after so many steps of the loader, one more on rank 1 where it is late."""
    with alone() as loader:
        for number, batch in enumerate(loader, start=1):
            odb.pop_step(batch)
            if number - (late and dist.get_rank()) in steps:
                save(folder, loader, step=number, shared={"model": Value()}, own={"own": Value(dist.get_rank())})
            if number > max(steps):
                break


@pytest.mark.slow
def test_ranks_that_see_different_files_choose_the_same_checkpoint(tmp_path: Path) -> None:
    values(run_ranks(save_ranks, 2, str(tmp_path / "0"), [1, 2, 3]))
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    (tmp_path / "1" / "save-000003-step-3" / "checkpoint.json").unlink()
    shutil.rmtree(tmp_path / "0" / "save-000001-step-1")
    assert values(run_ranks(load_ranks, 2, str(tmp_path), True)) == [2, 2]
    shutil.rmtree(tmp_path / "0" / "save-000002-step-2")
    for outcome in run_ranks(load_ranks, 2, str(tmp_path), True):
        assert outcome.error == "StateError"
        assert "whole on all ranks" in outcome.text


@pytest.mark.slow
def test_what_goes_wrong_on_one_rank_stops_all(tmp_path: Path) -> None:
    for rank, outcome in enumerate(run_ranks(save_ranks, 2, str(tmp_path / "late"), [2], 1)):
        assert (rank, outcome.error) == (rank, "StateError")
    values(run_ranks(save_ranks, 2, str(tmp_path / "cut"), [2]))
    path = tmp_path / "cut" / "save-000001-step-2" / "odb_loader_00001_of_00002.json"
    path.write_text("?" * path.stat().st_size)
    for outcome in run_ranks(load_ranks, 2, str(tmp_path / "cut")):
        assert outcome.error == "StateError"
        assert path.name in outcome.text


def on_mesh(folder: str) -> tuple[list[str], int]:
    """Save and load on two data-parallel ranks of two processes each, with a model that FSDP2 shards in own."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    world, trained = odb.World.from_mesh(mesh), fully_shard(model(), mesh=mesh["dp"])
    with alone(world=world) as loader:
        odb.pop_step(next(iter(loader)))
        with pytest.raises(odb.ConfigError, match="give it in own"):
            save(folder, loader, step=1, shared={"model": trained})
        target = save(folder, loader, step=1, shared={"value": Value(5.0)}, own={"model": trained})
    before = [weight.to_local().clone() for weight in trained.parameters()]
    with torch.no_grad():
        for weight in trained.parameters():
            weight.zero_()
    with alone(world=world) as loader:
        value = Value()
        assert load(folder, loader, shared={"value": value}, own={"model": trained})
        assert loader.state_dict()["step"] == 1
    after = [weight.to_local() for weight in trained.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return sorted(path.name for path in target.iterdir()), int(value.weight.item())


@pytest.mark.slow
def test_peers_of_a_data_parallel_rank_write_its_state_once(tmp_path: Path) -> None:
    for names, value in values(run_ranks(on_mesh, 4, str(tmp_path))):
        assert value == 5
        assert names == [
            "checkpoint.json",
            *(f"odb_loader_{rank:05d}_of_00002.json" for rank in range(2)),
            *(f"own_{process:05d}_of_00004.pt" for process in range(4)),
            "shared.pt",
        ]
    manifest = json.loads((tmp_path / "save-000001-step-1" / "checkpoint.json").read_text())
    assert (manifest["ranks"], manifest["processes"]) == (2, 4)
    with alone() as loader, pytest.raises(odb.StateError, match="saved by 4 processes"):
        load(tmp_path, loader, shared={"value": Value()}, own={"model": Value()})
