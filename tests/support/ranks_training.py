"""A training loop on every rank, and the same training in one process over the same samples, compared step by step."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any

import torch
import torch.distributed as dist
from ranks_data import IGNORED, VOCABULARY, number_of, own_part, same, sample
from ranks_support import run_ranks, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import odb_stream as odb

RATE = 0.5


@dataclass(frozen=True, eq=False)
class Case:
    """A training run: samples of each rank, epochs, and settings of the Loader."""

    shares: tuple[int, ...]
    epochs: float = 1
    empty_first_on: int | None = None
    shuffle: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """What an epoch must hold."""
        return list(range(sum(self.shares)))

    def pipeline(self, rank: int, *stages: Any) -> odb.Pipeline:
        part = own_part(self.shares, rank, empty_first=self.empty_first_on == rank)
        return odb.Pipeline(odb.FromDataset(part, sharded=True, shuffle=self.shuffle), *stages)

    def loader(self, *stages: Any, world: odb.World | None = None, **settings: Any) -> odb.Loader:
        given = {"budget": odb.Budget(512), "window": 32, "lookahead": 16, **self.settings, **settings}
        rank = own_rank() if world is None else world.rank
        return odb.Loader(self.pipeline(rank, *stages), world=world, **given)


@dataclass(kw_only=True)
class Compared:
    """The largest differences, on rank 0, from one process that trains on the samples of all ranks.

    They are of any update's gradient and of the trained parameters.
    """

    gradient_error: float = 0.0
    parameter_error: float = 0.0
    gradient_size: float = 0.0

    def compare(
        self,
        trained: Iterable[torch.Tensor],
        gradients: list[torch.Tensor],
        updates: list[list[int]],
        alone: nn.Module,
        mean_loss: "MeanLoss | None" = None,
        rates: list[float] | None = None,
    ) -> list[tuple[float, int]]:
        """Train ``alone`` on the samples of each update; returns the summed loss and the tokens of each.

        ``trained`` are the parameters that the ranks have in the end.
        """
        found, references = [], []
        for numbers, rate in zip(updates, rates or [RATE] * len(updates), strict=True):
            loss, tokens = total_loss(alone, numbers, mean_loss)
            (loss / tokens).backward()
            references.append(flat_gradient(alone))
            update(alone, rate)
            found.append((loss.item(), tokens))
        assert len(gradients) == len(references)
        if references:
            mine, expected = torch.stack(gradients), torch.stack(references)
            self.gradient_size = float(expected.abs().max())
            self.gradient_error = float((mine - expected).abs().max())
        pairs = zip(trained, alone.parameters(), strict=True)
        self.parameter_error = max(float((a - b).detach().abs().max()) for a, b in pairs)
        return found

    def check(self, most_error: float) -> None:
        """The ranks trained as one process, and there was something to learn."""
        assert self.gradient_size > 1e-3
        assert self.gradient_error < most_error
        assert self.parameter_error < most_error


@dataclass
class EpochRecord(Compared):
    """What a rank saw in an epoch: of each step its info (as a dict) and the numbers of the samples in its batch."""

    infos: list[dict[str, Any]]
    numbers: list[list[int]]

    @property
    def emitted(self) -> list[int]:
        """The numbers of all samples but the stand-ins of idle steps."""
        return [n for info, held in zip(self.infos, self.numbers, strict=True) if not info["idle"] for n in held]


def rows_of(batch: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Token ids and labels of each sample of a batch, in either layout, without padding."""
    if "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(1).tolist()
        rows = zip(batch["input_ids"], batch["labels"], lengths, strict=True)
        return [(ids[:length].tolist(), labels[:length].tolist()) for ids, labels, length in rows]
    ends = batch["cu_seq_lens_q"].tolist()
    ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    return [(ids[a:b], labels[a:b]) for a, b in pairwise(ends)]


def numbers_of(batch: dict[str, Any]) -> list[int]:
    """The numbers of the samples in a batch; their content must be what their numbers say."""
    numbers = []
    for ids, labels in rows_of(batch):
        number = number_of(ids)
        assert (ids, labels) == tuple(row.tolist() for row in sample(number)), f"sample {number} is not as it was"
        numbers.append(number)
    return numbers


def take(iterator: Any, steps: int) -> list[list[int]]:
    """The samples of some steps; none for an idle one."""
    return [numbers_of(batch) if odb.pop_step(batch).samples else [] for batch in islice(iterator, steps)]


def in_order(nested: Any) -> list[int]:
    """The numbers in lists of any depth, sorted."""
    return sorted(itertools.chain.from_iterable([one] if isinstance(one, int) else in_order(one) for one in nested))


def schedule(case: Case, *stages: Any) -> list[list[int]]:
    """The samples of each step of one epoch on this rank."""
    with case.loader(*stages) as stream:
        return take(iter(stream), 1_000_000)


def two_epochs_with_workers() -> list[list[list[int]]]:
    """The schedules of two epochs whose samples two worker processes prepare."""
    with Case((120, 40)).loader(same, workers=2) as stream:
        return [take(iter(stream), 1_000_000) for _ in range(2)]


@functools.cache
def schedules(case: Case) -> list[list[list[int]]]:
    """The schedule of every rank of an undisturbed epoch; the processes for it run once for all tests of a case."""
    found: list[list[list[int]]] = values(run_ranks(schedule, len(case.shares), case))
    return found


def model() -> nn.Module:
    """The same tiny next-token model everywhere, in float64."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)).double()


def losses(logits: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """Cross entropy of the next token: logits (rows, width, vocabulary), labels (rows, width)."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction=reduction
    )


def whole(value: Any) -> torch.Tensor:
    """All of a tensor that may be sharded; all ranks must ask for it."""
    tensor: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensor.detach()


def flat_gradient(trained: nn.Module) -> torch.Tensor:
    return torch.cat([whole(parameter.grad).flatten() for parameter in trainable(trained)]).clone()


def trainable(trained: nn.Module) -> list[nn.Parameter]:
    """The parameters that get a gradient."""
    return [parameter for parameter in trained.parameters() if parameter.requires_grad]


def update(trained: nn.Module, rate: float = RATE) -> None:
    """Plain gradient descent."""
    with torch.no_grad():
        for parameter in trainable(trained):
            parameter -= rate * parameter.grad
            parameter.grad = None


MeanLoss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
"""The mean loss of a model on token ids and labels."""


def total_loss(
    trained: nn.Module, numbers: Iterable[int], mean_loss: MeanLoss | None = None
) -> tuple[torch.Tensor, int]:
    """The loss summed over all supervised tokens of samples, each by itself, and the number of tokens."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for number in numbers:
        ids, labels = (torch.from_numpy(row).long()[None] for row in sample(number))
        count = int((labels[:, 1:] != IGNORED).sum())
        loss = mean_loss(trained, ids, labels) if mean_loss else losses(trained(ids), labels, "mean")
        total, tokens = total + loss * count, tokens + count
    return total, tokens


def loss_of_all(trained: nn.Module, numbers: Iterable[int], mean_loss: MeanLoss | None = None) -> float:
    """The mean loss over all supervised tokens of samples."""
    total, tokens = total_loss(trained, numbers, mean_loss)
    return total.item() / tokens


def own_rank() -> int:
    """This process's rank; 0 where it is by itself."""
    return dist.get_rank() if dist.is_initialized() else 0


def of_all_ranks(value: Any) -> list[Any]:
    """The values of all ranks, on each of them."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


@dataclass
class Watch:
    """Notes the steps and gradients of a run, and compares it with one process."""

    infos: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[list[int]] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)

    def step(self, info: odb.StepInfo, batch: Mapping[str, Any]) -> None:
        self.infos.append(asdict(info))
        self.numbers.append(numbers_of(dict(batch)))

    def update(self, trained: nn.Module) -> None:
        """The optimizer is about to step."""
        self.gradients.append(flat_gradient(trained))

    def compared(self, trained: nn.Module, *, peers: int = 1, **given: Any) -> EpochRecord:
        """The record of this rank; rank 0 has trained one process on the same samples.

        ``peers`` neighbours share a data-parallel rank; the other options are those of :meth:`Compared.compare`.
        """
        record = EpochRecord(self.infos, self.numbers)
        everyone = of_all_ranks(record)[::peers]
        parameters = [whole(parameter) for parameter in trained.parameters()]
        if own_rank() == 0:
            updates: list[list[int]] = []
            for step, info in enumerate(record.infos):
                if info["accum_index"] == 0:
                    updates.append([])
                updates[-1] += [n for other in everyone if not other.infos[step]["idle"] for n in other.numbers[step]]
            record.compare(parameters, self.gradients, updates, **{"alone": model(), **given})
        return record


def watched_epoch(stream: Any) -> EpochRecord:
    """One epoch without a model."""
    watch = Watch()
    for batch in stream:
        watch.step(odb.pop_step(batch), batch)
    return EpochRecord(watch.infos, watch.numbers)


def trained_epoch(stream: odb.Loader) -> EpochRecord:
    """One epoch under DistributedDataParallel, without any join context, and its comparison."""
    trained, watch = DistributedDataParallel(model()), Watch()
    for batch in stream:
        step = odb.pop_step(batch)
        with nullcontext() if step.accum_last else trained.no_sync():
            loss = losses(trained(batch["input_ids"]), batch["labels"], "mean") * step.loss_scale
            loss.backward()
        watch.step(step, batch)
        if step.accum_last:
            watch.update(trained)
            update(trained)
    return watch.compared(trained)


@dataclass
class Trained:
    """What a rank brings home from a case: the record of each epoch, the report, and the samples of an epoch."""

    epochs: list[EpochRecord]
    report: dict[str, Any]
    samples: int | None


def train(case: Case) -> Trained:
    with case.loader() as stream:
        epochs = [trained_epoch(stream) for _ in range(int(case.epochs))]
        return Trained(epochs, stream.report(), stream.samples)


def train_all(cases: dict[str, Any], train: Callable[[Any], Any] = train) -> dict[str, Any]:
    """Train case after case in one process: starting one costs seconds."""
    trained = {}
    for name, case in cases.items():
        print(name, flush=True)
        trained[name] = train(case)
    return trained
