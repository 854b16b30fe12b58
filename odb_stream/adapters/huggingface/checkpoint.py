"""Which of the Trainer's checkpoints to resume from: the loader's files of all ranks, written last, make one whole."""

from pathlib import Path

from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from odb_stream.adapters.loader_states import newest_whole, state_problem
from odb_stream.config import World
from odb_stream.errors import StateError

TRAINER_STATE = "trainer_state.json"


def folder_of(output_dir: str, step: int) -> Path:
    """The folder of the checkpoint after an optimizer step."""
    return Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")


def find(asked: str | bool, output_dir: str, world: World) -> Path:
    """The checkpoint to resume from, the same on all ranks: the one that was named, or the last whole one.

    Raises StateError, on all ranks, where there is none or it is not whole.
    """
    folders = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if asked is True else [Path(str(asked))]
    by_name = {folder.name: folder for folder in folders}
    name, found = newest_whole({name: _problem(folder, world) for name, folder in by_name.items()}, world, _step_of)
    if name is not None:
        return by_name[name]
    if asked is True:
        raise StateError(f"{output_dir} holds no checkpoint that is whole on all ranks; found: {found}")
    raise StateError(
        f"{asked} is not a whole checkpoint of this trainer ({found}): name an earlier one, or give "
        "resume_from_checkpoint=True for the last whole one"
    )


def _problem(folder: Path, world: World) -> str:
    """What is missing in a checkpoint, in words; empty for a whole one."""
    if not (folder / TRAINER_STATE).is_file():
        return f"it has no {TRAINER_STATE}"
    try:
        TrainerState.load_from_json(str(folder / TRAINER_STATE))
    except ValueError:
        return f"its {TRAINER_STATE} is cut off"
    return state_problem(folder, world)


def _step_of(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
