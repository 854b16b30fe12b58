"""The Trainer on real ranks, and the same training in one process over all samples, compared update by update."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from ranks_data import IGNORED, VOCABULARY, own_part, sample
from ranks_training import flat_gradient, losses, numbers_of
from torch import nn
from trainer_cases import name_ranks
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback, TrainingArguments

import odb_stream as odb
from odb_stream.adapters.huggingface import StreamTrainer
from odb_stream.tiny_model import TEXT

RATE = 0.5


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


MODELS = {"mean": MeanModel, "items": ItemsModel}


def model(kind: str) -> nn.Module:
    """The same weights everywhere, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if kind == "qwen3":
            small = {**TEXT, "hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "initializer_range": 0.3}
            return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, **small)).double()
        return MODELS[kind]().double()


@dataclass(frozen=True)
class Case:
    """A training run: samples of each rank, the model, settings of the loader and arguments of the trainer."""

    shares: tuple[int, ...]
    kind: str = "mean"
    epochs: float = 1
    loss: Any = None
    rate: float = RATE
    spoilt: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)

    def loader(self, **settings: Any) -> odb.Loader:
        """This rank's loader."""
        given = {"budget": odb.Budget(256), "window": 16, "lookahead": 6, "seed": 3, **self.settings, **settings}
        rank = dist.get_rank() if dist.is_initialized() else 0
        return odb.Loader(odb.Pipeline(odb.FromDataset(own_part(self.shares, rank), sharded=True)), **given)

    def args(self, folder: str) -> TrainingArguments:
        """Arguments for plain gradient descent."""
        given = {"optim": "sgd", "learning_rate": self.rate, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
        given |= {"num_train_epochs": self.epochs, "logging_steps": 1, "save_strategy": "no"}
        given["gradient_accumulation_steps"] = self.settings.get("grad_accum", 1)
        return arguments(folder, **given | self.arguments)


def arguments(folder: str, **given: Any) -> TrainingArguments:
    """TrainingArguments for the CPU that report nowhere."""
    return TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, **given)


class Watch(TrainerCallback):
    """Notes each update's gradient and learning rate."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.rates: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gradients.append(flat_gradient(kwargs["model"]))
        self.rates.append(kwargs["optimizer"].param_groups[0]["lr"])


class Watched(StreamTrainer):
    """Notes what each update was made of: its samples, and how many steps of it were idle here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.updates: list[list[int]] = []
        self.idle: list[int] = []
        self.seen_before: list[int] = []

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        window, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [dict(batch) for batch in window]
        held = [(odb.pop_step(batch), numbers_of(batch)) for batch in batches]
        if held:
            self.updates.append([number for step, numbers in held if not step.idle for number in numbers])
            self.idle.append(sum(step.idle for step, _ in held))
            self.seen_before.append(self.run.progress.samples_seen)
        return window, items


class Spoilt(Watched):
    """Its own loss leaves the scale aside."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        odb.pop_step(inputs)
        return model(**inputs)["loss"]


class Told(logging.Handler):
    """Counts the warnings that name the loss scale."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.times = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.times += "loss_scale was not read" in record.getMessage()


@contextmanager
def listening() -> Iterator[Told]:
    """Hear what the package warns of."""
    told = Told()
    logging.getLogger("odb_stream").addHandler(told)
    try:
        yield told
    finally:
        logging.getLogger("odb_stream").removeHandler(told)


@dataclass
class Trained:
    """What a rank brings home. The errors are the largest differences from one process, on rank 0."""

    updates: list[list[int]]
    idle: int
    logs: list[dict[str, float]]
    curve: list[tuple[int, float]]
    loss: float
    epoch: float
    told: int
    gradient_error: float = 0.0
    gradient_size: float = 0.0
    parameter_error: float = 0.0
    loss_error: float = 0.0


def train(case: Case) -> Trained:
    """Train on this rank and compare."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        args = case.args(folder)
        with case.loader() as loader, listening() as told:
            fresh = model(case.kind)
            kind = Spoilt if case.spoilt else Watched
            trainer = kind(fresh, args, train_loader=loader, compute_loss_func=case.loss, callbacks=[watch])
            output = trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    curve = list(zip(trainer.seen_before, watch.rates, strict=True))
    ends = output.training_loss, trainer.state.epoch, told.times
    found = Trained(trainer.updates, sum(trainer.idle), logs, curve, *ends)
    everyone: list[Any] = [found.updates]
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found.updates)
    if not dist.is_initialized() or dist.get_rank() == 0:
        compare(case, found, everyone, watch, fresh)
    return found


def compare(case: Case, found: Trained, everyone: list[list[list[int]]], watch: Watch, trained: nn.Module) -> None:
    """Train one process on the same samples, update by update, and note how far the ranks are from it."""
    alone = model(case.kind)
    whole = [0.0, 0]
    for place, (mine, rate) in enumerate(zip(watch.gradients, watch.rates, strict=True)):
        numbers = [number for updates in everyone for number in updates[place]]
        total, tokens = total_loss(alone, numbers)
        (total / tokens).backward()
        reference = flat_gradient(alone)
        found.gradient_error = max(found.gradient_error, float((mine - reference).abs().max()))
        found.gradient_size = max(found.gradient_size, float(reference.abs().max()))
        if len(found.logs) == len(watch.gradients):
            found.loss_error = max(found.loss_error, abs(found.logs[place]["loss"] - total.item() / tokens))
        whole = [whole[0] + total.item(), whole[1] + tokens]
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
    found.loss_error = max(found.loss_error, abs(found.loss - whole[0] / whole[1]))
    pairs = zip(trained.parameters(), alone.parameters(), strict=True)
    found.parameter_error = max(float((a - b).detach().abs().max()) for a, b in pairs)


def total_loss(alone: nn.Module, numbers: list[int]) -> tuple[torch.Tensor, int]:
    """The loss summed over all tokens of these samples, each by itself, and the number of tokens."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for number in numbers:
        ids, labels = (torch.from_numpy(row).long()[None] for row in sample(number))
        count = int((labels[:, 1:] != IGNORED).sum())
        output = alone(input_ids=ids, labels=labels)
        total, tokens = total + output["loss"] * count, tokens + count
    return total, tokens


def train_all(cases: dict[str, Case]) -> dict[str, Trained]:
    """Train case after case in one process: starting one costs seconds."""
    name_ranks()
    trained = {}
    for name, case in cases.items():
        print(name, flush=True)
        trained[name] = train(case)
    return trained
