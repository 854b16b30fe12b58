"""What every scheme of checkpoints needs: files of the loader states of all ranks, and processes that agree.

:mod:`odb_stream.adapters.checkpoint` is the scheme for plain loops. The Trainer and accelerate have folders of their
own, into which their adapters write these files; Lightning keeps the states inside its own checkpoint.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from odb_stream import storage
from odb_stream.checkpoint import merge
from odb_stream.config import World
from odb_stream.errors import StateError

STATE_NAME = re.compile(r"odb_loader_(\d{5})_of_(\d{5})\.json")

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def write_state(folder: Path, world: World, content: Mapping[str, Any]) -> Path | None:
    """Write this rank's loader state, ``content["loader"]``, and what goes with it, whole or not at all; its path.

    Of the processes that share a data-parallel rank the first one writes, and the others return None.
    """
    if world.places is not None and world.places.index(world.rank) != place_of(world)[0]:
        return None
    for path, found in state_files(folder).items():
        if found[1] != world.size:  # left by an older run on another number of ranks: merged with ours it would mislead
            path.unlink(missing_ok=True)
    path = folder / state_name(world.rank, world.size)
    storage.write_atomic(str(path), json.dumps(content).encode())
    return path


def withdraw_state(folder: Path, world: World) -> None:
    """Remove this rank's file: the checkpoint in the folder is not whole until it is written again."""
    (folder / state_name(world.rank, world.size)).unlink(missing_ok=True)


def read_state(folder: Path, world: World, *, required: Iterable[str] = ()) -> dict[str, Any]:
    """What :func:`write_state` wrote for this rank; the loader states of another number of ranks are merged.

    Raises StateError for a file that is missing or damaged, or lacks one of the ``required`` keys.
    """
    names = {"loader", *required}
    own = folder / state_name(world.rank, world.size)
    if own.exists():
        return _parsed(own, names)
    contents = [_parsed(path, names) for path in state_files(folder)]
    if not contents:
        raise StateError(f"{folder} has no loader state (odb_loader_*.json): name a checkpoint that all ranks saved")
    logger.info("merging the loader states of %d ranks for %d", len(contents), world.size)
    return {**contents[0], "loader": merge([content["loader"] for content in contents])}


def state_problem(folder: Path, world: World) -> str:
    """What is missing for :func:`read_state` on this rank, in words; empty for nothing."""
    found = set(state_files(folder).values())
    if not found:
        return "it has no loader state (odb_loader_*.json): saving was cut off, or another trainer wrote it"
    if (world.rank, world.size) in found:
        return ""
    ranks = max(size for _, size in found)
    missing = sorted(set(range(ranks)) - {rank for rank, size in found if size == ranks})
    if missing or ranks == world.size or any(size != ranks for _, size in found):
        return f"of the loader states of {ranks} ranks those of rank {missing or world.rank} are missing"
    return ""


def state_for(states: list[dict[str, Any]], world: World) -> dict[str, Any]:
    """The state that a rank loads, of those of all ranks in their order."""
    return states[world.rank] if len(states) == world.size else merge(states)


def state_name(rank: int, ranks: int) -> str:
    """The name of the file with a rank's loader state."""
    return f"odb_loader_{rank:05d}_of_{ranks:05d}.json"


def state_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files with loader states in a folder, by rank, each with its rank and the number of ranks."""
    matches = {path: STATE_NAME.fullmatch(path.name) for path in sorted(folder.glob("odb_loader_*.json"))}
    return {path: (int(match[1]), int(match[2])) for path, match in matches.items() if match}


def _parsed(path: Path, required: set[str]) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = required - set(content)
    except (OSError, ValueError, TypeError) as error:
        raise StateError(
            f"{path} cannot be read ({type(error).__name__}: {error}): use an earlier checkpoint"
        ) from error
    if missing:
        raise StateError(f"{path} lacks {sorted(missing)}: use an earlier checkpoint")
    return content


def newest_whole(problems: Mapping[str, str], world: World, order: Callable[[str], int]) -> tuple[str | None, str]:
    """The newest checkpoint that is whole for all processes, or None; and what was found, in words.

    ``problems`` says what this process finds wrong with each checkpoint that it sees. The choice is made of what all
    processes see: on a network file system their listings may differ for a while, and ranks that load different
    checkpoints would train on as if nothing were wrong.
    """
    seen = gathered(dict(problems), world)
    names = sorted({name for one in seen for name in one}, key=order)
    found = {
        name: next(
            (f"{told} (process {process})" for process, one in enumerate(seen) if (told := one.get(name, "not seen"))),
            "",
        )
        for name in names
    }
    words = "; ".join(f"{name}: {told}" for name, told in found.items() if told) or "nothing"
    whole = [name for name in names if not found[name]]
    if whole and whole[-1] != names[-1]:
        logger.warning("resuming from %s; newer ones are not whole: %s", whole[-1], words)
    return (whole[-1] if whole else None), words


def place_of(world: World) -> tuple[int, int]:
    """This process's number in the World's process group, and their count; data-parallel ranks may share several."""
    if world.size == 1 and world.places is None:  # a run by itself, even where torch.distributed is used around it
        return 0, 1
    return dist.get_rank(world.group), dist.get_world_size(world.group)


def gathered(value: Result, world: World) -> list[Result]:
    """The values of all processes, on each of them."""
    processes = place_of(world)[1]
    values: list[Any] = [value] * processes
    if processes > 1:
        dist.all_gather_object(values, value, group=world.group)
    return values


def together(action: Callable[[], Result], world: World) -> Result:
    """Run an action on each process and return its result here; where one fails, all of them raise.

    A process that failed alone would leave the others waiting for it in the next collective.
    """
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        failure = error
    told = gathered("" if failure is None else f"{type(failure).__name__}: {failure}", world)
    if failure is not None:
        raise failure
    for process, text in enumerate(told):
        if text:
            raise StateError(f"process {process} failed, so that all stop: {text}")
    return result
