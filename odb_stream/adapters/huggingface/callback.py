"""What happens at the events of training: progress, the end of epochs, figures, checkpoints; and the progress bar."""

import math
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.utils.logging import tqdm

from odb_stream.adapters.huggingface import checkpoint as hf_checkpoint
from odb_stream.adapters.huggingface.figures import Figures
from odb_stream.adapters.huggingface.progress import Progress
from odb_stream.adapters.huggingface.stream import EvalStream, TrainStream
from odb_stream.loader import Loader


@dataclass
class Run:
    """What a trainer and its callback share: the streams, how far training is, and its figures.

    ``stretch`` are the figures since the last log, ``whole`` those of this call of ``train``, ``evaluation`` those of
    the evaluation that runs, logged under ``evaluated_as``. ``checked`` says whether a batch was looked at.
    """

    stream: TrainStream
    evaluated: EvalStream | None
    progress: Progress
    stretch: Figures
    whole: Figures
    evaluation: Figures | None = None
    evaluated_as: str = "eval"
    checked: bool = False
    step_at_start: int = 0
    samples_at_start: int = 0

    @property
    def loader(self) -> Loader:
        """The loader that is trained on."""
        return self.stream.loader

    def next_stretch(self) -> None:
        """Book the stretch and begin a new one."""
        self.whole.add(self.stretch)
        self.stretch.restart()


class StreamCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Keeps a run's progress. Comes before the user's callbacks, so that they see the true epoch."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show the epochs of the whole run, not only those that are left."""
        if self.run is not None:
            state.num_train_epochs = math.ceil(self.run.progress.epochs)
            state.epoch = self.run.progress.epoch

    def on_optimizer_step(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Enter the step that was made, and see whether it was the last of the epoch, or of the run."""
        run = self.run
        if run is None or run.stream.windows is None or run.stream.windows.last is None:
            return
        run.progress.advance(run.stream.windows.last)
        if not run.stream.windows.more():
            run.progress.end_epoch()
            control.should_epoch_stop = True
        if run.progress.finished:  # the Trainer then stops, logs, evaluates and saves as at its last step
            state.max_steps = state.global_step + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the true epoch; sum the figures where they are about to be logged."""
        if self.run is None:
            return
        state.epoch = self.run.progress.epoch
        if control.should_log:
            self.run.stretch.gather()
        if control.should_save:
            hf_checkpoint.withdraw(hf_checkpoint.folder_of(args.output_dir, state.global_step), self.run.loader.world)

    def on_epoch_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Sum the figures: what was not logged yet belongs to the whole run."""
        if self.run is not None:
            self.run.stretch.gather()

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write the loader's state of the step that the checkpoint is of; this makes the checkpoint whole."""
        if self.run is None:
            return
        progress, loader = self.run.progress, self.run.loader
        content = {
            "global_step": state.global_step,
            "progress": progress.plain(),
            "loader": loader.state_dict(progress.step),
        }
        hf_checkpoint.write(hf_checkpoint.folder_of(args.output_dir, state.global_step), loader.world, content)


class SampleBar(ProgressCallback):  # type: ignore[misc]  # transformers is untyped
    """The Trainer's progress bar, by samples: how many there are is known (with an index), the steps never are."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._shown = 0

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show the bar, at the place where a resumed run stands."""
        if state.is_world_process_zero:
            self._shown = self._progress.position
            self.training_bar = tqdm(
                total=self._progress.total, initial=self._shown, unit=" samples", dynamic_ncols=True
            )

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Move the bar."""
        if state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.update(self._progress.position - self._shown)
            self._shown = self._progress.position
