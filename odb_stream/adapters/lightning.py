"""Lightning: a LightningDataModule over Loaders and a callback that scales the loss, logs and counts samples.

What a user writes::

    data = LoaderDataModule(train=make_loader, evaluation=make_evaluation_loader)
    trainer = Trainer(callbacks=[ExactLoss()], accumulate_grad_batches=4, max_epochs=3, strategy="ddp")
    trainer.fit(module, datamodule=data)

``training_step(self, batch, batch_idx)`` and ``validation_step`` of the module return the loss that the model gives,
the mean over the supervised tokens of the batch, which contains model inputs only.
"""

# ruff: noqa: ARG002 - hooks have the signature that Lightning calls

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.optim import Optimizer

from odb_stream.adapters.loader_states import gathered, state_for
from odb_stream.adapters.torch import Meter, SampleSchedule
from odb_stream.errors import ConfigError
from odb_stream.loader import Loader
from odb_stream.nodes.collate import Batch, pop_step
from odb_stream.sample import StepInfo

__all__ = ["ExactLoss", "LoaderDataModule", "Stream"]

LOGGED = ("loss", "padding", "utilisation", "tokens_per_second", "samples_per_second")


class Stream:
    """What Lightning iterates over: the batches of a Loader, their step infos kept apart.

    It has no length, no state and no batch size, so Lightning can neither shard it, nor skip in it, nor save it for one
    rank only. Lightning starts iterating more often than it trains: where no batch of an epoch was trained on, the next
    iteration repeats that epoch.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.step: StepInfo | None = None
        """The step that is trained or evaluated now, or the last one; None before the first of an epoch."""
        self.updates = 0
        """Updates of the optimizer before :attr:`step`."""
        self._ahead: deque[StepInfo] = deque()
        self._start: dict[str, Any] | None = None
        self._first = 0
        self._exhausted = False

    def __iter__(self) -> Iterator[Batch]:
        if self._start is not None and self.step is None:
            self.loader.load_state_dict(self._start)
        self._start, self._exhausted, self.step = self.loader.state_dict(), False, None
        self._ahead.clear()
        for batch in self.loader:
            self._ahead.append(pop_step(batch))
            yield batch
        self._exhausted = True

    def take(self, updates: int = 0) -> StepInfo:
        """The info of the next batch, before which there were so many updates. Lightning reads ahead, in order."""
        taken = self._ahead.popleft()
        self.updates = updates
        if self.step is None:
            self._first = taken.step
        self.step = taken
        return taken

    @property
    def ended(self) -> bool:
        """Whether :attr:`step` is the last of its epoch."""
        return self._exhausted and not self._ahead

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """The loader's state ``behind`` steps before the end of :attr:`step`, whatever was read ahead.

        After the last step of an epoch it is the start of the next.
        """
        if self.step is None:
            return self._start or self.loader.state_dict()
        if not behind and self.ended:
            return self.loader.state_dict()
        number = self.step.step - behind
        if number < self._first and self._start is not None:
            return self._start
        return self.loader.state_dict(number)


class LoaderDataModule(LightningDataModule):
    """Builds Loaders when all ranks have met, gives them to Lightning unchanged, and saves the state of each rank.

    Args:
        train: makes the Loader to train on; called on every rank, after Lightning has started torch.distributed.
        evaluation: makes the Loader to validate on, with ``closure="join"`` and a source without shuffling.

    ``training`` and ``evaluation`` are the streams over them, from ``setup`` on; their ``loader`` is the Loader and
    their ``step`` the StepInfo of the present batch. A checkpoint holds the states of all ranks. On another number of
    ranks they are merged when it is loaded (see :func:`odb_stream.checkpoint.merge`).

    Raises:
        ConfigError: from ``setup``, where the Trainer's settings do not fit the Loader; names setting and way out.
        StateError: when a checkpoint does not fit.
    """

    training: Stream | None = None
    evaluation: Stream | None = None

    def __init__(self, train: Callable[[], Loader], evaluation: Callable[[], Loader] | None = None) -> None:
        super().__init__()
        self._make_training, self._make_evaluation = train, evaluation
        self._followed = False

    def setup(self, stage: str) -> None:
        """Build what the stage needs, and check that the Trainer does not change it."""
        trainer = _trainer_of(self)
        if stage == "fit":
            self.training = Stream(_made(self._make_training, "train"))
            check_trainer(trainer, self.training.loader)
        if stage in ("fit", "validate") and self._make_evaluation is not None:
            self.evaluation = Stream(_made(self._make_evaluation, "evaluation"))

    def follow(self) -> None:
        """Note that an ExactLoss takes the step infos: without one the loss would not be scaled."""
        self._followed = True

    @property
    def behind(self) -> int:
        """Steps since the last update: a checkpoint holds no gradients, so these steps are made again on resume."""
        if self.training is None or self.training.step is None:
            return 0
        step = self.training.step
        stepped = step.accum_last and _trainer_of(self).global_step > self.training.updates
        return 0 if stepped else step.accum_index + 1

    def train_dataloader(self) -> Stream:
        """The stream over the training loader."""
        if self.training is None:
            raise ConfigError("there is no training loader outside of Trainer.fit")
        return self._checked(self.training)

    def val_dataloader(self) -> Any:
        """The stream over the evaluation loader; no loader at all where none was given."""
        return [] if self.evaluation is None else self._checked(self.evaluation)

    def _checked(self, stream: Stream) -> Stream:
        if not self._followed:
            raise ConfigError("the Trainer has no ExactLoss among its callbacks, which scales the loss: add one")
        return stream

    def teardown(self, stage: str) -> None:
        """Close the loaders; their reports and states can still be read."""
        del stage
        for stream in (self.training, self.evaluation):
            if stream is not None:
                stream.loader.close()

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks after the last update, equal on all ranks, which must all call it."""
        if self.training is None:
            return {}
        return {"ranks": gathered(self.training.state_dict(self.behind), self.training.loader.world)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where the checkpoint was saved; all ranks load the same checkpoint."""
        if self.training is not None:
            loader = self.training.loader
            loader.load_state_dict(state_for(state_dict["ranks"], loader.world))


class ExactLoss(Callback):
    """Makes the loss the token mean over the global batch, for any ranks, steps and accumulation; and logs it.

    Every ``log_every_n_steps`` updates it logs, over all ranks since the last time: ``train/loss`` (over all supervised
    tokens), ``train/padding``, ``train/utilisation`` (real tokens of the budget), ``train/tokens_per_second``,
    ``train/samples_per_second``, and ``train/samples``, all samples of the run so far. After a validation it logs
    ``val/loss``, the mean over all supervised tokens, the same for any number of ranks.

    Args:
        schedule: makes the learning rate's schedule by samples for the optimizer, instead of Lightning's own.
    """

    def __init__(self, schedule: Callable[[Optimizer], SampleSchedule] | None = None) -> None:
        self.samples = 0
        """Samples of all ranks in all updates so far."""
        self._make_schedule = schedule
        self._schedule: SampleSchedule | None = None
        self._meter: Meter | None = None
        self._validation: Meter | None = None
        self._open = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the module and its data."""
        data = _data_of(trainer)
        if stage == "fit" and not pl_module.automatic_optimization:
            raise ConfigError(
                f"{type(pl_module).__name__}.automatic_optimization is False: ExactLoss scales the loss of "
                "training_step; leave it True, or write the loop with odb_stream.adapters.torch"
            )
        data.follow()
        device = trainer.strategy.root_device
        if data.training is not None:
            self._meter = Meter(budget=data.training.loader.settings.budget.tokens, device=device)
        if data.evaluation is not None:
            self._validation = Meter(budget=data.evaluation.loader.settings.budget.tokens, device=device)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the schedule, before a checkpoint sets the rates to what they were."""
        if self._make_schedule is not None:
            self._schedule = self._make_schedule(trainer.optimizers[0])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that Lightning reads the data module's own stream."""
        if trainer.train_dataloader is not _data_of(trainer).training:
            raise ConfigError(
                f"Lightning trains on {trainer.train_dataloader!r} instead of the LoaderDataModule's stream: do not "
                "wrap it, and do not override train_dataloader"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take the step's info."""
        _training(trainer).take(trainer.global_step)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Scale the gradient of the loss. Lightning has divided the loss by the accumulation; this is undone."""
        step = _training(trainer).step
        assert step is not None
        factor = step.loss_scale * trainer.accumulate_grad_batches
        loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step, and log every ``log_every_n_steps`` updates."""
        stream = _training(trainer)
        step = stream.step
        assert step is not None
        assert self._meter is not None
        if (trainer.global_step > stream.updates) != step.accum_last:
            raise ConfigError(
                f"step {step.step} of epoch {step.epoch} is number {step.accum_index} of an accumulation window (last: "
                f"{step.accum_last}), but Lightning with accumulate_grad_batches={trainer.accumulate_grad_batches} has "
                "another window: give the Loader the same number in grad_accum, and no GradientAccumulationScheduler"
            )
        self._meter.add(step, _loss_of(outputs, "training_step") * trainer.accumulate_grad_batches)
        self._open += step.global_samples
        if not step.accum_last:
            return
        self.samples, self._open = self.samples + self._open, 0
        if self._schedule is not None:
            self._schedule.advance(step)
        every = setting(trainer, "log_every_n_steps")
        if every and trainer.global_step % every == 0:
            figures = self._meter.read()
            logged = {f"train/{name}": figures[name] for name in LOGGED}
            pl_module.log_dict({**logged, "train/samples": float(self.samples)}, batch_size=1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an interrupted validation, or the sanity check, has left."""
        if self._validation is not None:
            self._validation.restart()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the loss of a batch, by its supervised tokens."""
        stream = _data_of(trainer).evaluation
        assert stream is not None
        assert self._validation is not None
        self._validation.add_evaluated(stream.take(), _loss_of(outputs, "validation_step"))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the mean over all supervised tokens of all ranks."""
        if self._validation is None:
            return
        self._validation.gather()
        if self._validation.supervised:
            pl_module.log("val/loss", self._validation.loss, batch_size=1)

    def state_dict(self) -> dict[str, Any]:
        """The count of samples."""
        return {"samples": self.samples}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make Lightning's counts in the checkpoint agree with the loader's state in it: after an update, same epoch.

        Lightning would resume inside an epoch that has ended, up to a number of batches that a Loader cannot know; it
        counts steps whose gradients are lost; and it regards an epoch that ``max_steps`` cut short as done.
        """
        data, loop = _data_of(trainer), checkpoint["loops"]["fit_loop"]
        if data.training is None or data.training.step is None:
            return
        batches, epochs, behind = loop["epoch_loop.batch_progress"], loop["epoch_progress"], data.behind
        if behind:
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # counted again when it resumes
            for counts in (batches["total"], batches["current"]):
                made = counts["ready"] - behind
                counts.update(ready=made, started=made, processed=made, completed=made - 1)
        whole = data.training.ended and not behind
        if whole:
            batches["is_last_batch"] = False
            batches["total"]["completed"] = batches["total"]["processed"]
            batches["current"] = dict.fromkeys(batches["current"], 0)
        for counts in (epochs["total"], epochs["current"]):
            counts["processed"] = counts["completed"] = counts["started"] - (not whole)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue to count."""
        self.samples = state_dict["samples"]


def _data_of(trainer: Trainer) -> LoaderDataModule:
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, LoaderDataModule):
        raise ConfigError(f"ExactLoss needs a LoaderDataModule, not {data!r}: call trainer.fit(module, datamodule=...)")
    return data


def _training(trainer: Trainer) -> Stream:
    stream = _data_of(trainer).training
    assert stream is not None
    return stream


def _loss_of(outputs: Any, name: str) -> torch.Tensor:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not torch.is_tensor(loss):
        raise ConfigError(
            f"{name} returned {outputs!r}: it must return the loss of every batch, or a dict with it under 'loss', on "
            "an idle step too, because its batch is a real one"
        )
    return loss


def check_trainer(trainer: Trainer, loader: Loader) -> None:
    """Raise a ConfigError that names the first setting of the Trainer that does not fit the Loader."""
    expected, given = loader.settings.grad_accum, trainer.accumulate_grad_batches
    ranks = loader.world.size
    if given != expected:
        raise ConfigError(
            f"Trainer.accumulate_grad_batches is {given} and the Loader's grad_accum is {expected}: give both the same "
            "number"
        )
    if ranks != trainer.world_size:
        raise ConfigError(
            f"the Loader was built for {ranks} ranks, but Lightning runs {trainer.world_size}: build it in the "
            "function that LoaderDataModule is given, and let each process have data of its own (DDP or FSDP)"
        )
    if trainer.strategy.handles_gradient_accumulation:
        raise ConfigError(
            f"{type(trainer.strategy).__name__} divides the loss and counts micro-steps by itself: use DDP or FSDP"
        )
    if isinstance(trainer.limit_train_batches, int) and not setting(trainer, "fast_dev_run"):
        raise ConfigError(
            f"limit_train_batches (or overfit_batches) is {trainer.limit_train_batches}: an epoch ends by itself; "
            "bound the run by max_steps"
        )


def setting(trainer: Trainer, name: str) -> Any:
    """A public setting of a Trainer, of those that its class does not declare."""
    return getattr(trainer, name)


def _made(make: Callable[[], Loader], name: str) -> Loader:
    loader = make()
    if not isinstance(loader, Loader):
        raise ConfigError(f"{name} of LoaderDataModule must make a Loader, not {loader!r}")
    return loader


def _trainer_of(data: LightningDataModule) -> Trainer:
    if data.trainer is None:
        raise ConfigError("LoaderDataModule is set up by a Trainer: give it to Trainer.fit or Trainer.validate")
    return data.trainer
