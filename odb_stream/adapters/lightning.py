"""Lightning: a LightningDataModule over Loaders and a callback that scales the loss, logs and counts samples.

What a user writes::

    data = LoaderDataModule(train=make_loader, evaluation=make_evaluation_loader)
    trainer = Trainer(callbacks=[ExactLoss()], accumulate_grad_batches=4, max_epochs=3, strategy="ddp")
    trainer.fit(module, datamodule=data)

``training_step(self, batch, batch_idx)`` and ``validation_step`` of the module return the loss that the model gives,
the mean over the supervised tokens of the batch, which holds model inputs only.
"""

# ruff: noqa: ARG002 - hooks have the signature that Lightning calls

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from odb_stream.adapters.lightning_data import LoaderDataModule, Stream, setting
from odb_stream.adapters.torch import Meter, SampleSchedule
from odb_stream.errors import ConfigError

__all__ = ["ExactLoss", "LoaderDataModule", "Stream"]

LOGGED = ("loss", "padding", "utilisation", "tokens_per_second", "samples_per_second")


class ExactLoss(Callback):
    """Makes the loss the token mean over the global batch, whatever ranks, steps and accumulation; and logs it.

    Every ``log_every_n_steps`` updates it logs, over all ranks since the last time: ``train/loss`` (over all supervised
    tokens), ``train/padding``, ``train/utilisation`` (real tokens of the budget), ``train/tokens_per_second``,
    ``train/samples_per_second``, and ``train/samples``, all samples of the run so far. After a validation it logs
    ``val/loss``, the mean over all supervised tokens, the same for any number of ranks.

    Args:
        schedule: makes the learning rate's schedule by samples for the optimizer, in the place of Lightning's own.
    """

    def __init__(self, schedule: Callable[[Optimizer], SampleSchedule] | None = None) -> None:
        self.samples = 0
        """Samples of all ranks in all updates so far."""
        self._make_schedule = schedule
        self._schedule: SampleSchedule | None = None
        self._meter: Meter | None = None
        self._open = 0
        self._sums = torch.zeros(2)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the module and its data."""
        data = _data_of(trainer)
        if stage == "fit" and not pl_module.automatic_optimization:
            raise ConfigError(
                f"{type(pl_module).__name__}.automatic_optimization is False: ExactLoss scales the loss of "
                "training_step; leave it True, or write the loop with odb_stream.adapters.torch"
            )
        for stream in (data.training, data.evaluation):
            if stream is not None:
                stream.followed = True
        if data.training is not None:
            budget = data.training.loader.settings.budget.tokens
            self._meter = Meter(budget=budget, device=trainer.strategy.root_device)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the schedule, before a checkpoint sets the rates to what they were."""
        if self._make_schedule is not None:
            self._schedule = self._make_schedule(trainer.optimizers[0])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that Lightning reads the very stream that the data module gave."""
        if trainer.train_dataloader is not _data_of(trainer).training:
            raise ConfigError(
                f"Lightning trains on {trainer.train_dataloader!r} instead of the LoaderDataModule's stream: do not "
                "wrap it, nor override train_dataloader"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take the step's info."""
        stream = _training(trainer)
        stream.take()
        stream.updates = trainer.global_step

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Scale what flows back from the loss; Lightning has divided the loss by the accumulation, which is undone."""
        step = _training(trainer).step
        assert step is not None
        factor = step.loss_scale * trainer.accumulate_grad_batches
        loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step, and log when it is time."""
        stream = _training(trainer)
        step = stream.step
        assert step is not None
        assert self._meter is not None
        if (trainer.global_step > stream.updates) != step.accum_last:
            raise ConfigError(
                f"step {step.step} of epoch {step.epoch} is number {step.accum_index} of an accumulation window (last: "
                f"{step.accum_last}), but Lightning with accumulate_grad_batches={trainer.accumulate_grad_batches} has "
                "it otherwise: give the Loader as many in grad_accum, and no GradientAccumulationScheduler"
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
        """Begin to sum."""
        self._sums = torch.zeros(2, dtype=torch.float64, device=trainer.strategy.root_device)

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
        step = stream.take()
        loss = _loss_of(outputs, "validation_step")
        if step.supervised_tokens:
            self._sums[0] += loss.detach().to(self._sums) * step.supervised_tokens
            self._sums[1] += step.supervised_tokens

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the mean over all supervised tokens of all ranks."""
        total, tokens = trainer.strategy.reduce(self._sums, reduce_op="sum").tolist()
        if tokens:
            pl_module.log("val/loss", total / tokens, batch_size=1)

    def state_dict(self) -> dict[str, Any]:
        """The count of samples."""
        return {"samples": self.samples}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let the checkpoint stand where the loader's state in it stands: after an update, in the same epoch.

        Lightning would go on inside an epoch that has ended, up to a number of batches that a Loader cannot know; it
        counts steps whose gradients are lost; and it takes an epoch for done that ``max_steps`` has cut.
        """
        data, loop = _data_of(trainer), checkpoint["loops"]["fit_loop"]
        if data.training is None or data.training.step is None:
            return
        batches, epochs, behind = loop["epoch_loop.batch_progress"], loop["epoch_progress"], data.behind
        if behind:
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # counted again when it goes on
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
        """Go on counting."""
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
            "an idle step too: its batch is a real one"
        )
    return loss
