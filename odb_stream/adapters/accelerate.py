"""accelerate: the loader stays as it is, and accumulation, loss and checkpoints follow it.

What a user writes::

    accelerator = Accelerator(gradient_accumulation_steps=4)
    loader, model, optimizer = prepare(accelerator, loader, model, optimizer)
    for batch in loader:
        step = odb.pop_step(batch)
        with accumulate(accelerator, step, model) as backward:
            backward(model(**to_device(batch, accelerator.device)).loss)
            optimizer.step()
            optimizer.zero_grad()

``accelerator.save_state`` and ``load_state`` then include the loader's state of every rank. Evaluation, figures and
learning rates by samples are those of :mod:`odb_stream.adapters.torch`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from odb_stream.adapters.loader_states import gathered, read_state, state_files, state_problem, write_state
from odb_stream.errors import ConfigError, StateError
from odb_stream.loader import Loader
from odb_stream.sample import StepInfo

logger = logging.getLogger(__name__)

OWN_ACCUMULATION = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)
"""Engines that count micro-steps and divide the loss by themselves, whatever the loader says."""


def prepare(accelerator: Accelerator, loader: Loader, *objects: Any) -> tuple[Any, ...]:
    """``accelerator.prepare`` for models, optimizers and schedulers; returns ``(loader, *prepared objects)``.

    The loader is returned unchanged: it feeds each rank by itself. ``accelerator.save_state`` saves its state, one file
    for each rank, and ``load_state`` loads it; on another number of ranks the files of all ranks are merged (see
    :func:`odb_stream.checkpoint.merge`). Call it once, with the loader that is trained on.

    Raises:
        ConfigError: ``loader`` is not a Loader, or a DataLoader among the objects was made of one;
            ``gradient_accumulation_steps``, ``dispatch_batches``, ``split_batches``, the engine or the number of
            ranks do not fit the loader. The message names the setting and the way out.
    """
    _check_loader(accelerator, loader)
    for given in objects:
        _check_object(given, accelerator.num_processes)
    prepared = accelerator.prepare(*objects) if objects else ()
    world = loader.world

    def save(_models: Sequence[Any], _weights: Sequence[Any], folder: str) -> None:
        if not accelerator.sync_gradients:
            raise StateError(
                "save_state was called inside an accumulation window, and a checkpoint holds no gradients: save after "
                "a step with accum_last"
            )
        write_state(Path(folder), world, {"loader": loader.state_dict()})

    def load(_models: Sequence[Any], folder: str) -> None:
        # All ranks raise where one of them lacks a file; alone it would leave the others waiting.
        if problems := [told for told in gathered(state_problem(Path(folder), world), world) if told]:
            raise StateError(
                f"{folder}: {problems[0]}; give a folder that accelerator.save_state wrote on all ranks after "
                "prepare(accelerator, loader, ...)"
            )
        loader.load_state_dict(read_state(Path(folder), world)["loader"])

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return (loader, *(prepared if len(objects) != 1 else (prepared,)))


class Backward:
    """The backward pass of one step of the loader; :func:`accumulate` gives it to its block."""

    def __init__(self, accelerator: Accelerator, step: StepInfo) -> None:
        self._accelerator = accelerator
        self._factor = step.loss_scale * accelerator.gradient_accumulation_steps
        self.called = False

    def __call__(self, loss: torch.Tensor, **options: Any) -> None:
        """Scale the loss to its share of the global batch and hand it to ``accelerator.backward``.

        ``loss`` is the mean over the supervised tokens of this rank's batch, a scalar, unscaled. accelerate divides it
        by ``gradient_accumulation_steps``; this is undone here. ``options`` go to ``accelerator.backward``.
        """
        self.called = True
        self._accelerator.backward(loss * self._factor, **options)


@contextmanager
def accumulate(accelerator: Accelerator, step: StepInfo, *models: torch.nn.Module) -> Iterator[Backward]:
    """``accelerator.accumulate(*models)`` for a step of the loader, by the loader's accumulation window.

    Prepared optimizers step, and gradients are reduced over ranks, where ``step.accum_last`` is set: also at the end of
    an epoch, whose last window may be shorter than the others. The block must call the :class:`Backward` that it gets.

    Raises:
        ConfigError: accelerate has another window, or the block did not call it: the loss would depend on how samples
            fell into steps.
    """
    steps = accelerator.gradient_accumulation_steps
    # accelerate offers no other way to set its counter. accumulate() adds 1 to it, then compares it with `steps`.
    accelerator.step = steps - 1 if step.accum_last else step.accum_index
    with accelerator.accumulate(*models):
        if accelerator.sync_gradients != step.accum_last:
            raise ConfigError(
                f"step {step.step} of epoch {step.epoch} is number {step.accum_index} of an accumulation window "
                f"(last: {step.accum_last}), but accelerate has sync_gradients={accelerator.sync_gradients} with "
                f"gradient_accumulation_steps={steps}: give the Loader the same grad_accum, and do not iterate "
                "over a prepared DataLoader around the step"
            )
        backward = Backward(accelerator, step)
        yield backward
    if not backward.called:
        raise ConfigError(
            f"the block of accumulate() ended without backward in step {step.step} of epoch {step.epoch}, so the loss "
            "was not scaled to the global batch: write `with accumulate(...) as backward: backward(loss)`"
        )


def state_path(folder: str | Path, rank: int) -> Path:
    """Where ``save_state(folder)`` has put the loader's state of a data-parallel rank: a JSON file.

    Raises StateError where there is none.
    """
    for path, (owner, _) in state_files(Path(folder)).items():
        if owner == rank:
            return path
    raise StateError(f"{folder} has no loader state of rank {rank}: give a folder that accelerator.save_state wrote")


def _check_loader(accelerator: Accelerator, loader: Loader) -> None:
    if not isinstance(loader, Loader):
        raise ConfigError(f"the second argument of prepare must be a Loader, not {loader!r}: give models after it")
    if accelerator.distributed_type in OWN_ACCUMULATION:
        raise ConfigError(
            f"accelerate runs {accelerator.distributed_type.value}, which divides the loss and counts micro-steps by "
            "itself: use DDP or FSDP"
        )
    for name, harm in (
        ("dispatch_batches", "rank 0 would read for all ranks, but every rank's Loader reads its own share"),
        ("split_batches", "batches would be cut over ranks again, but a Loader's batch is this rank's own"),
    ):
        if getattr(accelerator, name):
            raise ConfigError(f"{name} is True: {harm}; leave it out of DataLoaderConfiguration")
    expected, given = loader.settings.grad_accum, accelerator.gradient_accumulation_steps
    if given != expected:
        raise ConfigError(
            f"Accelerator.gradient_accumulation_steps is {given} and the Loader's grad_accum is {expected}: give both "
            "the same number"
        )
    ranks = loader.world.size
    if accelerator.parallelism_config is None and ranks != accelerator.num_processes:
        raise ConfigError(
            f"the Loader was built for {ranks} ranks, but accelerate runs {accelerator.num_processes}: build the "
            "Accelerator before the Loader, and without GPUs as Accelerator(cpu=True): otherwise each rank trains alone"
        )


def _check_object(given: Any, ranks: int) -> None:
    if isinstance(given, Loader):
        raise ConfigError("prepare takes one Loader, as its second argument: use others as they are, without preparing")
    if isinstance(given, DataLoader) and isinstance(given.dataset, Loader):
        raise ConfigError(
            "a DataLoader was made of a Loader, so that accelerate would shard its batches again: iterate over the "
            "Loader itself"
        )
    if isinstance(given, LRScheduler) and ranks > 1:
        logger.warning(
            "accelerate moves a prepared scheduler on %d times an update, as if batches had a fixed size: use "
            "odb_stream.adapters.torch.SampleSchedule, or do not give the scheduler to prepare",
            ranks,
        )
