"""A plain training loop in torch, under DDP or FSDP2: what you need around ``loss * step.loss_scale``.

A loop that uses all of it::

    for batch in whole_windows(loader):
        step = odb.pop_step(batch)
        with sync_when_due(model, step):
            loss = model(**batch).loss
            (loss * step.loss_scale).backward()
        meter.add(step, loss)
        if step.accum_last:
            norm = clip_grad_norm(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.advance(step)
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from odb_stream.adapters.meter import Meter as Meter  # one of this module's public names
from odb_stream.errors import ConfigError
from odb_stream.loader import Loader
from odb_stream.nodes.collate import STEP_KEY, Batch, pop_step
from odb_stream.nodes.loss_scale_guard import changed
from odb_stream.sample import StepInfo


def whole_windows(batches: Iterable[Batch], steps: int) -> Iterator[Batch]:
    """The batches of an epoch; the last accumulation window is filled up to ``steps`` with idle ones.

    Only for trainers that step after a fixed number of batches. An idle copy has the tensors of the last batch and loss
    scale 0: it changes neither gradient nor counts. In such a window ``accum_last`` is set on the last idle batch.
    """
    for batch in batches:
        last: StepInfo = batch[STEP_KEY]
        short = last.accum_last and last.accum_index < steps - 1
        # The copies are made before the loop gets the batch: it takes the step info out.
        idle = idle_copies(batch, last.accum_index + 1, steps) if short else []
        if short:
            batch[STEP_KEY] = changed(last, accum_last=False)
        yield batch
        yield from idle


def idle_copies(batch: Mapping[str, Any], first: int, steps: int) -> list[Batch]:
    """What fills up an accumulation window of ``steps`` after its last batch: idle copies, from place ``first`` on."""
    step = batch[STEP_KEY]
    return [idle_copy(batch, step, place, is_last=place == steps - 1) for place in range(first, steps)]


def idle_copy(batch: Mapping[str, Any], step: StepInfo, place: int, *, is_last: bool) -> Batch:
    """A batch with the same tensors that counts for nothing: at ``place`` of the accumulation window of ``step``."""
    idle = changed(
        step,
        refs=(),
        samples=0,
        tokens=0,
        padded_tokens=0,
        supervised_tokens=0,
        global_samples=0,
        global_tokens=0,
        global_supervised_tokens=0,
        loss_scale=0.0,
        accum_index=place,
        accum_last=is_last,
        idle=True,
    )
    return {**batch, STEP_KEY: idle}


@contextlib.contextmanager
def sync_when_due(model: torch.nn.Module, step: StepInfo) -> Iterator[None]:
    """Let DDP or FSDP2 reduce gradients in the last step of an accumulation window only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(step.accum_last)
        yield
    elif isinstance(model, DistributedDataParallel) and not step.accum_last:
        with model.no_sync():
            yield
    else:
        yield


def clip_grad_norm(parameters: Iterable[torch.nn.Parameter], most: float) -> float:
    """Clip gradients to a total 2-norm, over all shards under FSDP2 and tensor parallelism; returns the norm before it.

    Call it once per window, after the step with ``accum_last``: before that, gradients are partial sums.
    """
    # torch cannot compute a norm over gradients on different meshes, so each mesh gets its own.
    kinds: dict[Any, list[torch.nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            kinds[getattr(parameter.grad, "device_mesh", None)].append(parameter)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds.values()]
    parts = [float(norm.full_tensor() if isinstance(norm, DTensor) else norm) for norm in norms]
    total = math.hypot(*parts)
    for kind in kinds.values():
        torch.nn.utils.clip_grads_with_norm_(kind, most, torch.tensor(total, dtype=torch.float64))
    return total


class SampleSchedule:
    """A learning rate by samples, so that the curve is the same for any number of ranks and any batches.

    Args:
        optimizer: the current learning rates of its groups are the base.
        factor: of the base, as a function of the share of all samples seen so far, from 0 to 1 (and 1 after the end).
        samples: of the whole run, for example ``loader.samples * epochs`` (drops count as samples not seen).
        samples_per_epoch: of one epoch, such as ``loader.samples``; needed for the share in later epochs.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factor: Callable[[float], float],
        *,
        samples: int | None,
        samples_per_epoch: int | None,
    ) -> None:
        if not samples or not samples_per_epoch:
            raise ConfigError(
                f"samples is {samples!r}, samples_per_epoch {samples_per_epoch!r}: a schedule by samples needs both "
                "numbers; write an index beside every shard (`odb-stream index`), or give the numbers yourself"
            )
        self._optimizer = optimizer
        self._factor = factor
        self._samples = samples
        self._per_epoch = samples_per_epoch
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._set(0.0)

    def advance(self, step: StepInfo) -> float:
        """Set the rates after a step of the optimizer; returns the share of samples seen."""
        seen = step.epoch * self._per_epoch + step.samples_seen
        share = min(1.0, seen / self._samples)
        self._set(share)
        return share

    def _set(self, share: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * self._factor(share)


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Loader, *, device: torch.device | str = "cpu", group: Any = None) -> float:
    """The loss over all supervised tokens of one epoch, each once: the same for any number of ranks.

    The loader should have ``closure="join"`` and a source without shuffling. All ranks must call it.
    """
    was_training = model.training
    model.eval()
    meter = Meter(budget=loader.settings.budget.tokens, device=device, group=group)
    for batch in loader:
        step = pop_step(batch)
        meter.add_evaluated(step, model(**to_device(batch, device)).loss)
    meter.gather()
    model.train(was_training)
    return meter.loss


def to_device(batch: Mapping[str, Any], device: torch.device | str) -> Batch:
    """The batch with its tensors on a device; pinned tensors are copied without waiting."""
    return {
        name: value.to(device, non_blocking=True) if torch.is_tensor(value) else value for name, value in batch.items()
    }
