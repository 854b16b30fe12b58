"""The loader's part of a Trainer checkpoint: a file of each rank, written last, so that it marks a whole one."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from odb_stream import storage
from odb_stream.checkpoint import merge
from odb_stream.config import World
from odb_stream.errors import StateError

TRAINER_STATE = "trainer_state.json"
FILE = re.compile(r"odb_loader_(\d{5})_of_(\d{5})\.json")

Content = dict[str, Any]


def file_name(rank: int, ranks: int) -> str:
    """The name of a rank's file in a checkpoint folder."""
    return f"odb_loader_{rank:05d}_of_{ranks:05d}.json"


def folder_of(output_dir: str, step: int) -> Path:
    """The folder of the checkpoint after an optimizer step."""
    return Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")


def write(folder: Path, world: World, content: Mapping[str, Any]) -> None:
    """Write this rank's file, whole or not at all; files of another number of ranks, from an older run, go."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        found = FILE.fullmatch(path.name)
        if found and int(found[2]) != world.size:
            path.unlink(missing_ok=True)
    storage.write_atomic(str(folder / file_name(world.rank, world.size)), json.dumps(content).encode())


def withdraw(folder: Path, world: World) -> None:
    """Take this rank's file away: the checkpoint is about to be written anew."""
    (folder / file_name(world.rank, world.size)).unlink(missing_ok=True)


def find(asked: str | bool, output_dir: str, world: World) -> Path:
    """The checkpoint to resume from, the same on all ranks: the one that was named, or the last whole one.

    Raises StateError, on all ranks, where there is none or it is not whole.
    """
    if asked is True:
        folders = sorted(Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=_step_of)
        problems = {folder.name: _problem(folder, world) for folder in folders}
        whole: list[set[str]] = gather_object([{name for name, problem in problems.items() if not problem}])
        usable = set.intersection(*whole)
        if not usable:
            found = "; ".join(f"{name}: {problem or 'whole here'}" for name, problem in problems.items()) or "none"
            raise StateError(f"{output_dir} holds no checkpoint that is whole on all ranks; found were: {found}")
        return Path(output_dir, max(usable, key=lambda name: _step_of(Path(name))))
    folder = Path(str(asked))
    told = [text for text in gather_object([_problem(folder, world)]) if text]
    if told:
        raise StateError(
            f"{folder} is no whole checkpoint of this trainer: {told[0]}; name an earlier one, or give "
            "resume_from_checkpoint=True for the last whole one"
        )
    return folder


def read(folder: Path, world: World) -> Content:
    """What :func:`write` wrote, for this rank; the loader states of another number of ranks are merged."""
    own = folder / file_name(world.rank, world.size)
    if own.exists():
        return _parsed(own)
    contents = [_parsed(path) for path in sorted(folder.iterdir()) if FILE.fullmatch(path.name)]
    return {**contents[0], "loader": merge([content["loader"] for content in contents])}


def _parsed(path: Path) -> Content:
    try:
        content: Content = json.loads(path.read_text())
    except ValueError as error:
        raise StateError(f"{path} is no loader state of a checkpoint: {error}; take an earlier checkpoint") from error
    missing = {"loader", "progress", "global_step"} - set(content)
    if missing:
        raise StateError(f"{path} lacks {sorted(missing)}: take an earlier checkpoint")
    return content


def _problem(folder: Path, world: World) -> str:
    """What is missing in a checkpoint, in words; empty for a whole one."""
    if not (folder / TRAINER_STATE).is_file():
        return f"it has no {TRAINER_STATE}"
    try:
        TrainerState.load_from_json(str(folder / TRAINER_STATE))
    except ValueError:
        return f"its {TRAINER_STATE} is cut off"
    found = [match for path in folder.iterdir() if (match := FILE.fullmatch(path.name))]
    if any((int(match[1]), int(match[2])) == (world.rank, world.size) for match in found):
        return ""
    if not found:
        return "it has no loader state (odb_loader_*.json): saving was cut off, or another trainer wrote it"
    ranks = {int(match[2]) for match in found}
    missing = sorted(set(range(max(ranks))) - {int(match[1]) for match in found})
    if len(ranks) > 1 or missing:
        return f"of the loader states of {max(ranks)} ranks those of rank {missing or found[0][1]} are missing"
    if ranks == {world.size}:
        return f"the loader state of rank {world.rank} is missing"
    return ""


def _step_of(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
