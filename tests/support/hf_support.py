"""The Trainer on real ranks, and the same training in one process over all samples, compared update by update."""

import itertools
import tempfile
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from ranks_data import VOCABULARY
from ranks_training import RATE, Case, Compared, flat_gradient, losses, numbers_of, of_all_ranks, own_rank
from torch import nn
from trainer_cases import SMALL, name_ranks
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainingArguments

import odb_stream as odb
from odb_stream.adapters.huggingface import LoaderMixin, StreamTrainer
from odb_stream.tiny_model import TEXT


class MeanModel(nn.Module):
    """A next-token model whose loss is the mean over its batch; it asks for no number of items."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY))

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cu_seq_lens_q: Any = None,
        cu_seq_lens_k: Any = None,
        max_length_q: Any = None,
        max_length_k: Any = None,
        use_cache: Any = None,
    ) -> dict[str, torch.Tensor]:
        logits = self.layers(input_ids)
        return {"logits": logits} if labels is None else {"loss": losses(logits, labels, "mean"), "logits": logits}


class ItemsModel(MeanModel):
    """The same, taking the number of items of the whole global batch where it is told."""

    def forward(self, input_ids: Any, labels: Any = None, num_items_in_batch: Any = None, **others: Any) -> Any:
        logits = self.layers(input_ids)
        if labels is None:
            return {"logits": logits}
        loss = losses(logits, labels, "mean" if num_items_in_batch is None else "sum")
        return {"loss": loss if num_items_in_batch is None else loss / num_items_in_batch, "logits": logits}


def per_item(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
    """A ``compute_loss_func`` as transformers describes it."""
    return losses(outputs["logits"], labels, "sum") / num_items_in_batch


def mean(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
    """A ``compute_loss_func`` that does not care for the number of items."""
    return losses(outputs["logits"], labels, "mean")


LOSS_SCALE_WARNING = "odb_stream.loader.epoch.logger.warning"


def model(kind: str) -> nn.Module:
    """The same weights everywhere, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if kind == "qwen3":
            small = {**TEXT, "hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "initializer_range": 0.3}
            return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, **small)).double()
        return (ItemsModel() if kind == "items" else MeanModel()).double()


@dataclass(frozen=True, eq=False)
class HfCase(Case):
    """A training run of the Trainer: also the model, its loss and rate, and arguments of the trainer."""

    kind: str = "mean"
    loss: Any = None
    rate: float = RATE
    spoilt: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def loader(self, *stages: Any, **settings: Any) -> odb.Loader:
        return super().loader(*stages, **{**SMALL, **self.settings, **settings})

    def args(self, folder: str) -> TrainingArguments:
        """Arguments for plain gradient descent."""
        given = {"optim": "sgd", "learning_rate": self.rate, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
        given |= {"num_train_epochs": self.epochs, "logging_steps": 1, "save_strategy": "no"}
        given["gradient_accumulation_steps"] = self.settings.get("grad_accum", 1)
        return arguments(folder, **given | self.arguments)


def arguments(folder: str, **given: Any) -> TrainingArguments:
    """TrainingArguments for the CPU that report nowhere."""
    return TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, **given)


class Watching(LoaderMixin):
    """Notes each update's samples, gradient and learning rate, and how many steps of it were idle here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.updates: list[list[int]] = []
        self.idle: list[int] = []
        self.seen_before: list[int] = []
        self.gradients: list[torch.Tensor] = []
        self.rates: list[float] = []

    def create_optimizer(self, *args: Any) -> Any:
        super().create_optimizer(*args).register_step_pre_hook(self.note)
        return self.optimizer

    def note(self, optimizer: Any, *_: Any) -> None:
        self.gradients.append(flat_gradient(self.model))
        self.rates.append(optimizer.param_groups[0]["lr"])

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        window, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [dict(batch) for batch in window]
        held = [(odb.pop_step(batch), numbers_of(batch)) for batch in batches]
        if held:
            self.updates.append([number for step, numbers in held if not step.idle for number in numbers])
            self.idle.append(sum(step.idle for step, _ in held))
            self.seen_before.append(self.run.progress.samples_seen)
        return window, items


class Watched(Watching, StreamTrainer):
    pass


class Spoilt(Watched):
    """Its own loss leaves the scale aside."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        odb.pop_step(inputs)
        return model(**inputs)["loss"]


def mean_loss(trained: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = trained(input_ids=ids, labels=labels)["loss"]
    return loss


@dataclass
class Trained(Compared):
    """What a rank brings home; ``loss_error`` is of the losses logged, on rank 0."""

    updates: list[list[int]]
    idle: int
    logs: list[dict[str, float]]
    curve: list[tuple[int, float]]
    loss: float
    epoch: float
    told: int
    loss_error: float = 0.0


def train(case: HfCase) -> Trained:
    """Train on this rank, and on rank 0 the same samples in one process, update by update."""
    name_ranks()
    fresh, kind = model(case.kind), Spoilt if case.spoilt else Watched
    with tempfile.TemporaryDirectory() as folder, mock.patch(LOSS_SCALE_WARNING) as told:
        args = case.args(folder)
        with case.loader() as loader:
            trainer = kind(fresh, args, train_loader=loader, compute_loss_func=case.loss)
            output = trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    curve = list(zip(trainer.seen_before, trainer.rates, strict=True))
    ends = output.training_loss, trainer.state.epoch, told.call_count
    found = Trained(trainer.updates, sum(trainer.idle), logs, curve, *ends)
    everyone = of_all_ranks(found.updates)
    if own_rank() == 0:
        updates = [list(itertools.chain(*numbers)) for numbers in zip(*everyone, strict=True)]
        alone, rates = model(case.kind), trainer.rates
        pairs = found.compare(fresh.parameters(), trainer.gradients, updates, alone, mean_loss, rates)
        means = [total / tokens for total, tokens in pairs]
        logged = [entry["loss"] for entry in logs] if len(logs) == len(means) else means
        whole = sum(total for total, _ in pairs) / sum(tokens for _, tokens in pairs)
        compared = zip([*logged, found.loss], [*means, whole], strict=True)
        found.loss_error = max(abs(one - other) for one, other in compared)
    return found
