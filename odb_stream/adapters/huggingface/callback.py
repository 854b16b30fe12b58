"""Callbacks of the Trainer: progress, the end of epochs, figures and checkpoints; and the progress bar.

A checkpoint of the Trainer is whole when the loader's files of all ranks, written last, are in it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils.logging import tqdm

from odb_stream.adapters.huggingface.progress import SampleProgress
from odb_stream.adapters.huggingface.stream import EvalStream, TrainStream
from odb_stream.adapters.loader_states import newest_whole, state_problem, withdraw_state, write_state
from odb_stream.adapters.meter import Meter
from odb_stream.config import World
from odb_stream.errors import StateError
from odb_stream.loader import Loader

TRAINER_STATE = "trainer_state.json"


@dataclass
class Run:
    """What a trainer and its callback share: the streams, how far training is, and its figures.

    ``since_log`` meters the steps since the last log, ``whole`` those of this call of ``train``.
    """

    stream: TrainStream
    evaluated: EvalStream | None
    progress: SampleProgress
    since_log: Meter
    whole: Meter

    @property
    def loader(self) -> Loader:
        return self.stream.loader

    def book(self) -> None:
        """Add the steps since the last log to the whole, and start again."""
        self.whole.include(self.since_log)
        self.since_log.restart()


class StreamCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Keeps a run's progress. Called before the user's callbacks, so that they see the true epoch."""

    def __init__(self) -> None:
        self._run: Run | None = None

    def follow(self, run: Run) -> None:
        """Keep the progress of this run. The Trainer wants its callbacks before it can make a run."""
        self._run = run

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show the epochs of the whole run, not only the remaining ones."""
        if self._run is not None:
            # Callbacks may change the Trainer's state and control: that is how transformers lets them steer it.
            state.num_train_epochs = math.ceil(self._run.progress.epochs)
            state.epoch = self._run.progress.epoch

    def on_optimizer_step(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the step, and check whether it was the last of the epoch, or of the run."""
        run = self._run
        if run is None or run.stream.windows is None or run.stream.windows.last is None:
            return
        run.progress.advance(run.stream.windows.last)
        if not run.stream.windows.more():
            run.progress.end_epoch()
            control.should_epoch_stop = True
        if run.progress.finished:  # the Trainer then stops, logs, evaluates and saves as at its last step
            state.max_steps = state.global_step + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the true epoch; sum the figures over ranks if they are about to be logged."""
        if self._run is None:
            return
        state.epoch = self._run.progress.epoch
        if control.should_log:
            self._run.since_log.gather()
        if control.should_save:
            # The Trainer may write over a checkpoint of the same step: until all is there again it must not look whole.
            withdraw_state(folder_of(args.output_dir, state.global_step), self._run.loader.world)

    def on_epoch_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Sum the figures over ranks: what was not logged yet still belongs to the whole run."""
        if self._run is not None:
            self._run.since_log.gather()

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write the loader's state of the checkpoint's step, which makes the checkpoint whole."""
        if self._run is None:
            return
        progress, loader = self._run.progress, self._run.loader
        content = {
            "global_step": state.global_step,
            "progress": progress.plain(),
            "loader": loader.state_dict(progress.step),
        }
        write_state(folder_of(args.output_dir, state.global_step), loader.world, content)


class SampleBar(ProgressCallback):  # type: ignore[misc]  # transformers is untyped
    """The Trainer's progress bar, by samples: with an index their number is known; that of the steps never is."""

    def __init__(self, progress: SampleProgress) -> None:
        super().__init__()
        self._progress = progress
        self._shown = 0

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show the bar, from where a resumed run continues."""
        if state.is_world_process_zero:
            self._shown = self._progress.position
            self.training_bar = tqdm(
                total=self._progress.total, initial=self._shown, unit=" samples", dynamic_ncols=True
            )

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.update(self._progress.position - self._shown)
            self._shown = self._progress.position


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
