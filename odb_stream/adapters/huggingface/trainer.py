"""transformers' Trainer on a loader: exact token means, progress by samples, checkpoints that carry the loader."""

import sys
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from odb_stream.adapters.huggingface.callback import Run, SampleBar, StreamCallback, find
from odb_stream.adapters.huggingface.checks import check_arguments, check_loaders, check_ranks
from odb_stream.adapters.huggingface.packing import check_packing, check_positions, choose_attention
from odb_stream.adapters.huggingface.progress import SampleProgress, check_schedule, follow_samples
from odb_stream.adapters.huggingface.stream import EvalStream, TrainStream, Windows
from odb_stream.adapters.loader_states import read_state
from odb_stream.adapters.meter import Meter
from odb_stream.errors import ConfigError
from odb_stream.loader import Loader
from odb_stream.nodes.collate import STEP_KEY, Batch, pop_step
from odb_stream.sample import StepInfo

Base: Any = Trainer if TYPE_CHECKING else object

LOGGED = ("loss", "padding", "utilisation", "tokens_per_second")
HALF = (torch.float16, torch.bfloat16)


class LoaderMixin(Base):  # type: ignore[misc]  # transformers is untyped
    """Put before a trainer class, ``class MyTrainer(LoaderMixin, Trainer)``, it trains on a Loader.

    Build the TrainingArguments first, because they start torch.distributed, then the Loader, then the trainer.
    Two arguments are set for you: ``ignore_data_skip`` (the loader resumes by itself) and
    ``average_tokens_across_devices`` (``loss_scale`` does that).

    Args:
        model: as for the Trainer.
        args: as for the Trainer. ``num_train_epochs`` ends training, ``max_steps`` is only an upper bound.
            ``gradient_accumulation_steps`` must be the loader's ``grad_accum``.
        train_loader: what to train on; closing it is up to you.
        eval_loader: what ``evaluate`` measures the loss on, every token once: the same epoch each time. Give it a
            source without shuffling and ``closure="join"``.
        schedule: the learning rate follows the ``"samples"`` seen, of all in the run, or the ``"steps"``, of
            ``max_steps``. By samples, ``warmup_steps`` is a share, and counts in ``lr_scheduler_kwargs`` are samples.
        attention: ``"auto"`` lets packed batches use flash attention where that is installed; ``"keep"`` does not.
        others: as for the Trainer, by name.

    Raises:
        ConfigError: an argument that would batch, order, shard or count the data again, or a model that mixes packed
            samples; the message names it and the way out.
    """

    loss_is_scaled_for_ga = True
    """Tells the Trainer that a loss is already its share of the whole accumulation window."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        train_loader: Loader,
        eval_loader: Loader | None = None,
        schedule: Literal["samples", "steps"] = "samples",
        attention: Literal["auto", "keep"] = "auto",
        **others: Any,
    ) -> None:
        check_loaders(train_loader, eval_loader, others)
        self.train_loader = train_loader
        self.eval_loader = eval_loader
        self.schedule = schedule
        evaluated = None if eval_loader is None else EvalStream(eval_loader)
        instead = _unread_dataset(type(self))
        if instead is not None:
            others["train_dataset"] = instead
        if evaluated is not None:
            others["eval_dataset"] = evaluated if instead is None else instead
        callback = StreamCallback()
        others["callbacks"] = [callback, *(others.get("callbacks") or [])]
        super().__init__(model=model, args=args, **others)
        # The arguments are the only way to tell the Trainer so, and they may have been made by its own default.
        self.args.ignore_data_skip = True
        self.args.average_tokens_across_devices = False
        check_arguments(self.args, train_loader)
        peers = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        for name, loader in (("train_loader", train_loader), ("eval_loader", eval_loader)):
            if loader is not None:
                check_ranks(loader, name, self.args.world_size, peers)
        progress = SampleProgress.of(train_loader, self.args.num_train_epochs)
        check_schedule(self.args, progress, schedule)
        if "packed" in {loader.settings.layout for loader in (train_loader, eval_loader) if loader is not None}:
            if attention == "auto":
                half = self.args.fp16 or self.args.bf16 or getattr(self.model, "dtype", None) in HALF
                choose_attention(self.model, half=half)
            check_packing(self.model, self.accelerator.autocast())
        self.run = Run(
            TrainStream(train_loader), evaluated, progress, self._meter(train_loader), self._meter(train_loader)
        )
        callback.follow(self.run)
        self._positions_checked = False
        self._step_at_start = self._samples_at_start = 0
        self._evaluation: Meter | None = None
        self._evaluation_prefix = "eval"
        if any(type(one) is ProgressCallback for one in self.callback_handler.callbacks):
            self.remove_callback(ProgressCallback)
            self.add_callback(SampleBar(progress))

    def _meter(self, loader: Loader) -> Meter:
        return Meter(budget=loader.settings.budget.tokens, device=self.accelerator.device, ranks=loader.world.size)

    def get_train_dataloader(self) -> Any:
        """The loader's own batches; nothing prepares, shards or moves them."""
        return self.run.stream

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The batches of ``eval_loader``, unless another dataset is given."""
        if self.run.evaluated is not None and (eval_dataset is None or eval_dataset is self.eval_dataset):
            return self.run.evaluated
        return super().get_eval_dataloader(eval_dataset)

    def set_initial_training_values(self, args: Any, _dataloader: Any) -> tuple[int, int, int, int, int, int, int]:
        """Epochs left, and bounds where the Trainer would count steps: a run ends by its epochs, not by a number."""
        progress = self.run.progress
        most = progress.most_steps(args.max_steps)
        left = progress.epochs_left if self._step_at_start < most else 0
        samples = progress.total or 0
        # More than all steps of the run, so that the Trainer takes a resumed run to be in its first epoch.
        per_epoch = most + 1
        return left, per_epoch, samples, samples, 0, per_epoch * args.gradient_accumulation_steps, most

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of the arguments, over the samples of the run instead of its steps."""
        total = self.run.progress.total
        if self.lr_scheduler is not None or self.schedule == "steps" or total is None:
            return super().create_scheduler(num_training_steps, optimizer)
        return follow_samples(super().create_scheduler(total, optimizer), lambda: self.run.progress.position)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; a checkpoint brings the loader back to the very step. Other arguments are the Trainer's.

        ``True`` takes the last checkpoint that is whole on all ranks. Raises StateError for one that is not.
        """
        run = self.run
        run.progress.restart()
        self._step_at_start = 0
        if resume_from_checkpoint:
            world = run.loader.world
            folder = find(resume_from_checkpoint, self.args.output_dir, world)
            content = read_state(folder, world, required=("progress", "global_step"))
            run.loader.load_state_dict(content["loader"])
            run.progress.restore(content["progress"])
            self._step_at_start = content["global_step"]
            resume_from_checkpoint = str(folder)
        self._samples_at_start = run.progress.samples_seen
        run.since_log.restart()
        run.whole.restart()
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        return output._replace(training_loss=output.metrics["train_loss"])

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Batch], Any]:
        """An accumulation window, the last one filled up. Tokens are not counted: each step's info knows them."""
        if not isinstance(epoch_iterator, Windows):
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            return batches, items
        return epoch_iterator.take(), None

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The model's mean loss over this rank's batch, times the step's loss scale.

        Where a ``compute_loss_func`` asks for the number of items, it gets that of this batch, so that what it returns
        is the mean over the batch, whether it divides by that number or takes a mean.
        """
        if STEP_KEY not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        step = pop_step(inputs)
        if not self._positions_checked:
            self._positions_checked = True
            check_positions(self.model, inputs)
        items = None if self.compute_loss_func is None else _items(step, inputs["labels"])
        result = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=items)
        loss, outputs = result if return_outputs else (result, None)
        self.run.since_log.add(step, loss)
        loss = loss * step.loss_scale
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: Any, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """One step of an evaluation, which is metered by its tokens; an idle step has none."""
        if STEP_KEY not in inputs:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        step = pop_step(inputs)
        result = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if self._evaluation is not None and result[0] is not None:
            self._evaluation.add_evaluated(step, result[0])
        return result

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate; on ``eval_loader`` the loss is the mean over all tokens of all ranks, each counted once."""
        if not isinstance(dataloader, EvalStream):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        meter = self._evaluation = self._meter(dataloader.loader)
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        meter.gather()
        self._evaluation_prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{self._evaluation_prefix}_loss"] = meter.loss
        self.run.since_log.leave_out(meter.seconds)
        return output._replace(num_samples=meter.samples)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; the loss is the token mean over all ranks since the last log, and the stream's figures are added."""
        run = self.run
        if "loss" in logs and "learning_rate" in logs:
            # Another log may come between the callback's gathering and this one, or without any step of ours.
            if run.since_log.gathered and run.since_log.steps:
                figures = run.since_log.figures()
                logs.update({name: figures[name] for name in LOGGED})
                run.book()
            logs["samples_seen"] = run.progress.samples_seen
        if "train_runtime" in logs:
            run.book()
            samples = run.progress.samples_seen - self._samples_at_start
            logs["train_samples_per_second"] = round(samples / max(logs["train_runtime"], 1e-9), 3)
            if run.whole.steps:
                logs["train_loss"] = run.whole.loss
        prefix, meter = self._evaluation_prefix, self._evaluation
        if meter is not None and f"{prefix}_runtime" in logs:
            logs[f"{prefix}_steps_per_second"] = round(meter.steps / max(logs[f"{prefix}_runtime"], 1e-9), 3)
            self._evaluation = None
        super().log(logs, start_time)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refused: each of its trials would begin where the one before stopped."""
        raise ConfigError("hyperparameter_search trains many times on one loader: start each with a loader of its own")


class StreamTrainer(LoaderMixin, Trainer):  # type: ignore[misc]  # transformers is untyped
    """The Trainer on a loader; see :class:`LoaderMixin`."""


def _items(step: StepInfo, labels: torch.Tensor) -> torch.Tensor:
    """The supervised tokens of a batch as models count them; 1 for an idle one, whose loss counts for nothing."""
    return torch.tensor(max(1, step.supervised_tokens), device=labels.device)


def _unread_dataset(trainer: type) -> Any:
    """One row that is never read, for a trainer of TRL, which refuses to start without a dataset; else None."""
    trl = sys.modules.get("trl")  # not imported here: the Trainer alone does not need it, nor datasets
    if trl is None or not issubclass(trainer, trl.SFTTrainer):
        return None
    return sys.modules["datasets"].Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
