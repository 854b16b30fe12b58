"""Callbacks of the Trainer: progress, the end of epochs, figures and checkpoints; and the progress bar."""

import math
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.utils.logging import tqdm

from odb_stream.adapters.huggingface.checkpoint import folder_of
from odb_stream.adapters.huggingface.progress import SampleProgress
from odb_stream.adapters.huggingface.stream import EvalStream, TrainStream
from odb_stream.adapters.loader_states import withdraw_state, write_state
from odb_stream.adapters.meter import Meter
from odb_stream.loader import Loader


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
