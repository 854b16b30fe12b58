"""Plain loops on real ranks, and the same training in one process over all samples at once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from ranks_data import VOCABULARY, own_part
from ranks_training import numbers_of, total_loss
from torch import nn

import odb_stream as odb
from odb_stream.adapters.torch import clip_grad_norm, sync_when_due

RATE, CLIP = 0.5, 0.5

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """A training run: samples of each rank, how gradients are shared, settings of the loader."""

    shares: tuple[int, ...]
    wrap: str = "ddp"
    steps: int = 20
    settings: dict[str, Any] = field(default_factory=dict)

    def loader(self, world: odb.World | None = None) -> odb.Loader:
        given = {"budget": odb.Budget(256), "window": 16, "lookahead": 6, "seed": 2, **self.settings}
        rank = dist.get_rank() if world is None else world.rank
        source = odb.FromDataset(own_part(self.shares, rank), sharded=True)
        return odb.Loader(odb.Pipeline(source), world=world, **given)


class Output(NamedTuple):
    """What a model returns: the mean loss over labels that count. (FSDP finds tensors in tuples, not in any object.)"""

    loss: torch.Tensor


class Model(nn.Module):
    """Each token predicts the next one through two layers: no sample sees another, padded or packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **others: Any) -> Output:
        logits = self.down(torch.tanh(self.up(self.embed(input_ids))))
        return Output(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def fresh_model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Model().double()


def endless(loader: odb.Loader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def whole(value: torch.Tensor) -> Array:
    """All of a tensor, as an array, which travels between processes by value."""
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).numpy().copy()


@dataclass
class Trained:
    """What a rank brings home: numbers of the samples of each update, gradients before clipping, norms, parameters."""

    updates: list[list[int]]
    gradients: list[list[Array]]
    norms: list[float]
    parameters: list[Array]
    idle: int
    short: int

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Step, clipped."""
        self.gradients.append([whole(p.grad) for p in model.parameters()])
        self.norms.append(clip_grad_norm(model.parameters(), CLIP))
        optimizer.step()
        optimizer.zero_grad()


def train(plan: Plan, model: nn.Module, loader: odb.Loader) -> Trained:
    """The loop of the adapter's docstring, watched."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    out = Trained([], [], [], [], 0, 0)
    numbers: list[int] = []
    accum = plan.settings.get("grad_accum", 1)
    for batch in endless(loader):
        step = odb.pop_step(batch)
        if not step.idle:
            numbers += numbers_of(batch)
        out.idle += step.idle
        with sync_when_due(model, step):
            (model(**batch).loss * step.loss_scale).backward()
        if not step.accum_last:
            continue
        out.short += step.accum_index + 1 < accum
        out.update(model, optimizer)
        out.updates.append(numbers)
        numbers = []
        if len(out.updates) == plan.steps:
            break
    out.parameters = [whole(p.detach()) for p in model.parameters()]
    return out


def alone(updates: list[list[int]]) -> Trained:
    """The same updates in one process: the mean over all supervised tokens of the update's samples."""
    model = fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    out = Trained(updates, [], [], [], 0, 0)
    for numbers in updates:
        total, tokens = total_loss(model, numbers, lambda trained, ids, labels: trained(ids, labels).loss)
        (total / tokens).backward()
        out.update(model, optimizer)
    out.parameters = [whole(p.detach()) for p in model.parameters()]
    return out


def largest_error(first: list[Array], second: list[Array]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(first, second, strict=True))
