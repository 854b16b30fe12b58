"""Checkpoints of a run on all its ranks: whole or not at all, the newest whole one found again, on any number of ranks.

A plain loop saves and resumes with two calls::

    parts = {"model": model, "optimizer": optimizer}
    loaded = load("checkpoints", loader, shared=parts)
    updates = loaded.step if loaded else 0
    for batch in loader:
        ...
        if step.accum_last:
            updates += 1
            if updates % 100 == 0:
                save("checkpoints", loader, step=updates, shared=parts, keep=2)

Each save makes a folder of its own, ``save-000007-step-700``::

    odb_loader_00000_of_00002.json    the loader's state of each data-parallel rank
    shared.pt                         what all ranks have in common, written once
    own_00000_of_00002.pt             what is each process's own
    checkpoint.json                   written last: a folder without it is not whole

No file of a whole checkpoint is ever changed, so a kill at any point leaves the one before it as it was.
"""

import json
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from odb_stream import storage
from odb_stream.adapters.loader_states import (
    gathered,
    newest_whole,
    place_of,
    read_state,
    state_problem,
    together,
    write_state,
)
from odb_stream.checkpoint.fit import unseal
from odb_stream.checkpoint.state import RankState
from odb_stream.config import World, require_int
from odb_stream.errors import ConfigError, StateError
from odb_stream.loader import Loader

__all__ = ["Loaded", "load", "save"]

FORMAT = 1
MANIFEST = "checkpoint.json"
SHARED = "shared.pt"
SAVE_NAME = re.compile(r"save-(\d+)-step-(\d+)")


class Stateful(Protocol):
    """A model, an optimizer, a scheduler: anything with a state that ``torch.load(weights_only=True)`` can read."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as torch.save takes it."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over a state."""


StatefulParts = Mapping[str, Stateful]


@dataclass(frozen=True)
class Loaded:
    """What :func:`load` has restored: the ``step`` and ``notes`` given to :func:`save`, the folder, the old ranks."""

    step: int
    folder: Path
    ranks: int
    """Data-parallel ranks that saved the checkpoint."""
    notes: dict[str, Any] = field(default_factory=dict)


def save(
    folder: str | os.PathLike[str],
    loader: Loader,
    *,
    step: int,
    shared: StatefulParts | None = None,
    own: StatefulParts | None = None,
    notes: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Path:
    """Save a run: the loader's state of every rank and the states of ``shared`` and ``own``. All processes call it.

    Save after a step with ``accum_last``: a checkpoint holds no gradients. With NCCL call ``torch.cuda.set_device``
    before, as torch's collectives of objects require.

    Args:
        folder: of the run, on a file system that all ranks share.
        loader: the Loader that is trained on.
        step: your count of steps, such as updates of the optimizer; :func:`load` returns it.
        shared: what is the same on all ranks, by name: the model and the optimizer, under DDP too (its ``module`` is
            saved, so that the model can be loaded with or without DDP). The first process writes it, once.
        own: what differs between processes, by name: FSDP2 models and their optimizers, random states. Each process
            writes its own, to be loaded on the same number of processes only.
        notes: values fit for JSON, such as the losses so far; those of the first process are kept.
        keep: how many whole checkpoints to keep, this one included; None keeps all.

    Returns:
        The folder of the checkpoint, in ``folder``.

    Raises:
        StateError: on all processes, inside an accumulation window, where processes are at different steps, or where
            another process could not write its files.
        ConfigError: for a part without ``state_dict``, or a sharded one in ``shared``.
        ShardError: on the process that could not write a file.
    """
    root, world = _local(folder), loader.world
    require_int("step", step, minimum=0)
    if keep is not None:
        require_int("keep", keep, minimum=1)
    shared_states = _states(shared, "shared")
    _refuse_shards(shared_states, "shared")
    own_states = _states(own, "own")
    state = loader.state_dict()
    found = unseal(state)
    if isinstance(found, RankState) and found.state.accumulation is not None:
        raise StateError(
            f"step {state['step']} of epoch {state['epoch']} is inside an accumulation window, and a checkpoint holds "
            "no gradients: save after a step with accum_last"
        )
    # Numbers only ever grow, and count unfinished saves too: no save meets the files of an earlier one, and the newest
    # is the last one saved, even where a run went back to an earlier step.
    mine = (step, state["epoch"], state["step"])
    seen = gathered((max(map(_number, _saves(root)), default=0), mine), world)
    if differing := [process for process, (_, other) in enumerate(seen) if other != seen[0][1]]:
        raise StateError(
            f"process {differing[0]} saves (step, epoch, step of the loader) {seen[differing[0]][1]}, but process 0 "
            f"saves {seen[0][1]}: call save on all ranks after the same step"
        )
    target = root / f"save-{1 + max(number for number, _ in seen):06d}-step-{step}"
    process, processes = place_of(world)

    def write_files() -> list[str]:
        """This process's files."""
        names = []
        if own_states:
            names.append(_own_name(process, processes))
            _write_parts(target / names[-1], own_states)
        if process == 0 and shared_states:
            names.append(SHARED)
            _write_parts(target / SHARED, shared_states)
        if written := write_state(target, world, {"loader": state}):
            names.append(written.name)
        return names

    # Only when all files of all processes are on disk may the manifest declare the checkpoint whole.
    names = [name for each in gathered(together(write_files, world), world) for name in each]

    def publish() -> None:
        if process == 0:
            sizes = {name: (target / name).stat().st_size for name in names}
            head = {"format": FORMAT, "step": step, "ranks": world.size, "processes": processes}
            content = {**head, "files": sizes, "notes": dict(notes or {})}
            storage.write_atomic(str(target / MANIFEST), json.dumps(content).encode())
            _prune(root, target, keep)

    together(publish, world)
    return target


def load(
    folder: str | os.PathLike[str],
    loader: Loader,
    *,
    shared: StatefulParts | None = None,
    own: StatefulParts | None = None,
) -> Loaded | None:
    """Load the newest whole checkpoint into the loader and the parts; None where the run has not saved one yet.

    All processes call it, before the first step, with the parts that :func:`save` got, and all load the same
    checkpoint. On another number of ranks the loader's states are merged, see :func:`odb_stream.checkpoint.merge`.

    Args:
        folder: of the run, or of one checkpoint in it.
        loader: a new Loader with the settings and data of the one that was saved.
        shared: as in :func:`save`, by the same names.
        own: as in :func:`save`; leave it out to load without what each process kept of its own.

    Raises:
        StateError: on all processes: the folder that was named is not whole, holds checkpoints of another kind, looks
            different to different processes, or has other parts; ``own`` was saved by another number of processes.
        ConfigError: for a part without ``load_state_dict``.
    """
    root, world = _local(folder), loader.world
    given = {"shared": _checked(shared, "shared"), "own": _checked(own, "own")}
    target = _choose(root, world)
    if target is None:
        return None
    process, processes = place_of(world)

    def read() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The manifest, this rank's loader state and the states of the parts."""
        manifest = json.loads((target / MANIFEST).read_text())
        files = {"shared": SHARED, "own": _own_name(process, processes)}
        if given["own"] and (manifest["ranks"], manifest["processes"]) != (world.size, processes):
            raise StateError(
                f"{target}: 'own' was saved by {manifest['processes']} processes ({manifest['ranks']} data-parallel "
                f"ranks), and there are {processes} ({world.size}): start as many, or load without own"
            )
        found = {}
        for kind, name in files.items():
            saved = _read_parts(target / name) if name in manifest["files"] and (kind != "own" or given["own"]) else {}
            if set(saved) != set(given[kind]):
                raise StateError(
                    f"{target}: {kind} was saved with {sorted(saved)}, but {sorted(given[kind])} are to be loaded: "
                    "give the same names"
                )
            found[kind] = saved
        return manifest, read_state(target, world)["loader"], found

    # All files are read before the first part changes: a damaged file stops all processes, not one of them.
    manifest, state, found = together(read, world)
    for kind, parts in given.items():
        for name, part in parts.items():
            part.load_state_dict(found[kind][name])
    loader.load_state_dict(state)
    return Loaded(manifest["step"], target, manifest["ranks"], manifest["notes"])


def _choose(root: Path, world: World) -> Path | None:
    """The checkpoint to load, the same on all processes."""
    named = SAVE_NAME.fullmatch(root.name) is not None
    folders = [root] if named else _saves(root)
    name, found = newest_whole({path.name: _problem(path, world) for path in folders}, world, _number)
    if name is not None:
        return root if named else root / name
    if named:
        raise StateError(f"{root} is not a whole checkpoint ({found}): name its parent folder to load the newest one")
    # A first save that was cut off is a run that starts again; a whole one that is damaged must not be passed over.
    if any(gathered(any((path / MANIFEST).exists() for path in folders), world)):
        raise StateError(
            f"{root} holds no checkpoint that is whole on all ranks; found: {found}. Use a file system that all ranks "
            "share, bring the missing files back, or start with another folder"
        )
    kinds = [kind for kind in gathered(_other_kind(root), world) if kind]
    if kinds:
        raise StateError(f"{root} {kinds[0]}")
    return None


def _other_kind(root: Path) -> str:
    """What the folder holds in the place of checkpoints of :func:`save`, and the way out; empty for nothing."""
    if root.exists() and not root.is_dir():
        return "is a file: name the folder that save was given"
    others = {path.parent for path in (*root.glob("odb_loader_*.json"), *root.glob("*/odb_loader_*.json"))}
    if others - set(_saves(root)):
        return (
            "holds a checkpoint of a trainer's adapter: resume it with that trainer (resume_from_checkpoint, or "
            "accelerator.load_state), or name another folder"
        )
    return ""


def _problem(folder: Path, world: World) -> str:
    """What keeps this process from loading a checkpoint; empty for nothing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        kind, files = manifest["format"], manifest["files"]
    except OSError:
        return f"it has no {MANIFEST}, so saving was cut off"
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} is damaged"
    if kind != FORMAT:
        return f"it has format {kind!r}, and this package reads {FORMAT}"
    for name, size in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or cut"
    return state_problem(folder, world)


def _prune(root: Path, newest: Path, keep: int | None) -> None:
    """Remove what interrupted saves left behind, and all but the newest ``keep`` whole checkpoints."""
    others = [path for path in _saves(root) if path != newest]
    whole = [path for path in others if (path / MANIFEST).exists()]
    spare = [] if keep is None else whole[: max(0, len(whole) + 1 - keep)]
    for path in others:
        if path in spare or path not in whole:
            # The save itself is done: what cannot be removed now is left to the next one.
            shutil.rmtree(path, ignore_errors=True)


def _saves(root: Path) -> list[Path]:
    """The folders of all saves in a run's folder, whole or not, oldest first."""
    found = [path for path in root.glob("save-*") if SAVE_NAME.fullmatch(path.name)]
    return sorted(found, key=_number)


def _number(save: str | Path) -> int:
    found = SAVE_NAME.fullmatch(Path(save).name)
    return int(found[1]) if found else -1


def _own_name(process: int, processes: int) -> str:
    return f"own_{process:05d}_of_{processes:05d}.pt"


def _local(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise ConfigError(f"{os.fspath(folder)!r} is not a folder: checkpoints need a file system that all ranks share")
    return Path(folder)


def _checked(parts: StatefulParts | None, kind: str) -> dict[str, Stateful]:
    """The parts with the modules inside of DDP, whose names of parameters are the same on one rank and on several."""
    given: dict[str, Any] = dict(parts or {})
    inner = {name: part.module if isinstance(part, DistributedDataParallel) else part for name, part in given.items()}
    for name, part in inner.items():
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise ConfigError(f"{kind}[{name!r}] is {part!r}, without state_dict and load_state_dict: use notes for it")
    return inner


def _states(parts: StatefulParts | None, kind: str) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in _checked(parts, kind).items()}


def _refuse_shards(value: Any, where: str) -> None:
    """Raise a ConfigError for a sharded tensor: the first process would save only its own shard."""
    if isinstance(value, DTensor):
        raise ConfigError(f"{where} is sharded over processes (FSDP2 or tensor parallelism): give it in own")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_shards(inner, f"{where}[{name!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _refuse_shards(inner, f"{where}[{number}]")


def _write_parts(path: Path, states: Mapping[str, Any]) -> None:
    with storage.create(str(path)) as stream:
        torch.save(dict(states), stream)


def _read_parts(path: Path) -> dict[str, Any]:
    try:
        # On the CPU first: parts copy their values to where they are, and a second copy would not fit on a GPU.
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise StateError(
            f"{path} cannot be read ({type(error).__name__}: {error}): remove its folder to load an earlier checkpoint"
        ) from error
    return found
