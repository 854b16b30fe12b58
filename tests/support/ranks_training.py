"""A training loop on every rank, and the same training in one process over the same samples, compared step by step."""

import functools
import itertools
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
    epochs: int = 1
    empty_first_on: int | None = None
    shuffle: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """What an epoch must hold."""
        return list(range(sum(self.shares)))

    def pipeline(self, rank: int, *stages: Any) -> odb.Pipeline:
        """The pipeline of a rank."""
        part = own_part(self.shares, rank, empty_first=self.empty_first_on == rank)
        return odb.Pipeline(odb.FromDataset(part, sharded=True, shuffle=self.shuffle), *stages)

    def loader(self, *stages: Any, **settings: Any) -> odb.Loader:
        """The Loader of this rank."""
        given = {"budget": odb.Budget(512), "window": 32, "lookahead": 16, **self.settings, **settings}
        return odb.Loader(self.pipeline(dist.get_rank(), *stages), **given)


@dataclass
class EpochRecord:
    """What a rank saw in an epoch: of each step its info (as a dict) and the numbers of the samples in its batch.

    ``gradient_error`` is the largest difference from the single process, on rank 0: of any update's gradient, and of
    the sum of all gradients; ``parameter_error`` that of the trained parameters.
    """

    infos: list[dict[str, Any]]
    numbers: list[list[int]]
    gradient_error: float = 0.0
    sum_error: float = 0.0
    parameter_error: float = 0.0
    gradient_size: float = 0.0

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


def run_through(case: Case, *stages: Any, **settings: Any) -> None:
    """One epoch on this rank without looking at a batch; what it raises is the rank's outcome."""
    with case.loader(*stages, **settings) as stream:
        for _ in stream:
            pass


def schedule(case: Case) -> list[list[int]]:
    """The samples of each step of one epoch on this rank."""
    with case.loader() as stream:
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


def flat_gradient(trained: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in trained.parameters()]).clone()


def update(trained: nn.Module) -> None:
    """Plain gradient descent."""
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter -= RATE * parameter.grad
            parameter.grad = None


def watched_epoch(stream: Any) -> EpochRecord:
    """One epoch without a model."""
    infos, numbers = [], []
    for batch in stream:
        infos.append(asdict(odb.pop_step(batch)))
        numbers.append(numbers_of(batch))
    return EpochRecord(infos, numbers)


def trained_epoch(stream: odb.Loader) -> EpochRecord:
    """One epoch under DistributedDataParallel, without any join context, and its comparison."""
    trained = DistributedDataParallel(model())
    infos, numbers, gradients = [], [], []
    for batch in stream:
        step = odb.pop_step(batch)
        with nullcontext() if step.accum_last else trained.no_sync():
            loss = losses(trained(batch["input_ids"]), batch["labels"], "mean") * step.loss_scale
            loss.backward()
        infos.append(asdict(step))
        numbers.append(numbers_of(batch))
        if step.accum_last:
            gradients.append(flat_gradient(trained))
            update(trained)
    record = EpochRecord(infos, numbers)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, record)
    if dist.get_rank() == 0:
        compare(record, everyone, gradients, trained.module)
    return record


def compare(record: EpochRecord, everyone: list[EpochRecord], gradients: list[torch.Tensor], trained: Any) -> None:
    """Train one process on the same samples, update by update, and note how far the ranks are from it."""
    alone = model()
    held: list[int] = []
    references = []
    for step, info in enumerate(record.infos):
        held += [n for other in everyone if not other.infos[step]["idle"] for n in other.numbers[step]]
        if info["accum_last"]:
            single_process_backward(alone, held)
            references.append(flat_gradient(alone))
            update(alone)
            held = []
    assert len(gradients) == len(references)
    if references:
        mine, expected = torch.stack(gradients), torch.stack(references)
        record.gradient_size = float(expected.abs().max())
        record.gradient_error = float((mine - expected).abs().max())
        record.sum_error = float((mine.sum(0) - expected.sum(0)).abs().max())
    parameters = zip(trained.parameters(), alone.parameters(), strict=True)
    record.parameter_error = max(float((a - b).abs().max()) for a, b in parameters)


def single_process_backward(alone: nn.Module, numbers: list[int]) -> None:
    """The gradient of the token mean over these samples."""
    total = torch.zeros((), dtype=torch.float64)
    tokens = 0
    for number in numbers:
        ids, labels = (torch.from_numpy(row).long()[None] for row in sample(number))
        total = total + losses(alone(ids), labels, "sum")
        tokens += int((labels[:, 1:] != IGNORED).sum())
    (total / tokens).backward()


@dataclass
class Trained:
    """What a rank brings home from a case: the record of each epoch, the report, and the samples of an epoch."""

    epochs: list[EpochRecord]
    report: dict[str, Any]
    samples: int | None


def train(case: Case) -> Trained:
    """Train through the epochs of a case on this rank."""
    with case.loader() as stream:
        epochs = [trained_epoch(stream) for _ in range(case.epochs)]
        return Trained(epochs, stream.report(), stream.samples)


def train_all(cases: dict[str, Case]) -> dict[str, Trained]:
    """Train case after case in one process: starting one costs seconds."""
    trained = {}
    for name, case in cases.items():
        print(name, flush=True)
        trained[name] = train(case)
    return trained
