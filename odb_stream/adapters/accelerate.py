"""accelerate: the loader stays as it is, and accumulation, loss and checkpoints follow it.

The loop of a user::

    accelerator = Accelerator(gradient_accumulation_steps=4)
    loader, model, optimizer = prepare(accelerator, loader, model, optimizer)
    for batch in loader:
        step = odb.pop_step(batch)
        with accumulate(accelerator, step, model) as backward:
            backward(model(**to_device(batch, accelerator.device)).loss)
            optimizer.step()
            optimizer.zero_grad()

``accelerator.save_state`` and ``load_state`` then carry the loader's state of every rank. Evaluation, figures and
learning rates by samples are those of :mod:`odb_stream.adapters.torch`.
"""

import json
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

from odb_stream import storage
from odb_stream.checkpoint import merge
from odb_stream.errors import ConfigError, StateError
from odb_stream.loader import Loader
from odb_stream.sample import StepInfo

logger = logging.getLogger(__name__)

OWN_ACCUMULATION = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)
"""Engines that count and divide micro-steps by themselves, whatever the loader says."""


def prepare(accelerator: Accelerator, loader: Loader, *objects: Any) -> tuple[Any, ...]:
    """``accelerator.prepare`` for models, optimizers and schedulers; returns ``(loader, *prepared objects)``.

    The loader is the very object that was given: it feeds each rank by itself. Its state is saved by
    ``accelerator.save_state``, one file a rank, and loaded by ``load_state``; on another number of ranks the files of
    all ranks are merged (see :func:`odb_stream.checkpoint.merge`). Call it once, with the loader that is trained on.

    Raises:
        ConfigError: ``loader`` is no Loader, or a DataLoader among the objects was made of one;
            ``gradient_accumulation_steps``, ``dispatch_batches``, ``split_batches``, the engine or the number of
            ranks do not go with the loader. The message names the setting and the way out.
    """
    _check_loader(accelerator, loader)
    for given in objects:
        _check_object(given, accelerator.num_processes)
    prepared = accelerator.prepare(*objects) if objects else ()
    checkpoints = _Checkpoints(accelerator, loader)
    accelerator.register_save_state_pre_hook(checkpoints.save)
    accelerator.register_load_state_pre_hook(checkpoints.load)
    return (loader, *(prepared if len(objects) != 1 else (prepared,)))


class Backward:
    """Backward for one step of the loader: what :func:`accumulate` gives to its block."""

    def __init__(self, accelerator: Accelerator, step: StepInfo) -> None:
        self._accelerator = accelerator
        self._factor = step.loss_scale * accelerator.gradient_accumulation_steps
        self.called = False

    def __call__(self, loss: torch.Tensor, **options: Any) -> None:
        """Scale the loss to its share of the global batch and hand it to ``accelerator.backward``.

        ``loss`` is the mean over the supervised tokens of this rank's batch, a scalar, unscaled. accelerate divides it
        by ``gradient_accumulation_steps``, which is made up for. ``options`` go to ``accelerator.backward``.
        """
        self.called = True
        self._accelerator.backward(loss * self._factor, **options)


@contextmanager
def accumulate(accelerator: Accelerator, step: StepInfo, *models: torch.nn.Module) -> Iterator[Backward]:
    """``accelerator.accumulate(*models)`` for a step of the loader, whose accumulation window decides.

    Prepared optimizers step, and gradients are reduced over ranks, where ``step.accum_last`` is set: at the end of an
    epoch too, whose last window may be shorter than the others. The block must call the :class:`Backward` that it is
    given.

    Raises:
        ConfigError: accelerate did not follow, or the block did not call it, so that the loss would depend on how
            samples fell into steps.
    """
    steps = accelerator.gradient_accumulation_steps
    accelerator.step = steps - 1 if step.accum_last else step.accum_index  # accumulate() adds 1, then compares
    with accelerator.accumulate(*models):
        if accelerator.sync_gradients != step.accum_last:
            raise ConfigError(
                f"step {step.step} of epoch {step.epoch} is number {step.accum_index} of an accumulation window "
                f"(last: {step.accum_last}), but accelerate has sync_gradients={accelerator.sync_gradients} with "
                f"gradient_accumulation_steps={steps}: give the Loader as many in grad_accum, and do not iterate over "
                "a prepared DataLoader around the step"
            )
        backward = Backward(accelerator, step)
        yield backward
    if not backward.called:
        raise ConfigError(
            f"the block of accumulate() ended without backward in step {step.step} of epoch {step.epoch}, so the loss "
            "was not scaled to the global batch: write `with accumulate(...) as backward: backward(loss)`"
        )


class _Checkpoints:
    """Saves and loads the loader's state beside what accelerate saves, each rank its own file."""

    def __init__(self, accelerator: Accelerator, loader: Loader) -> None:
        self._accelerator = accelerator
        self._loader = loader

    def save(self, models: Sequence[Any], weights: Sequence[Any], folder: str) -> None:
        """Hook of ``save_state``."""
        del models, weights
        if not self._accelerator.sync_gradients:
            raise StateError(
                "save_state was called inside an accumulation window, and a checkpoint holds no gradients: save after "
                "a step with accum_last"
            )
        state = self._loader.state_dict()
        storage.write_atomic(str(state_path(folder, self._loader.world.rank)), json.dumps(state).encode())

    def load(self, models: Sequence[Any], folder: str) -> None:
        """Hook of ``load_state``."""
        del models
        world = self._loader.world
        own = state_path(folder, world.rank)
        state = _read(own if own.exists() else state_path(folder, 0))
        ranks = state["world_size"]
        if ranks != world.size:
            logger.info("merging the loader states of %d ranks for %d", ranks, world.size)
            state = merge(_read(state_path(folder, rank)) for rank in range(ranks))
        self._loader.load_state_dict(state)


def state_path(folder: str | Path, rank: int) -> Path:
    """Where ``save_state(folder)`` puts the loader's state of a data-parallel rank: a JSON file."""
    return Path(folder) / f"loader-rank-{rank:05d}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path} cannot be read ({type(error).__name__}: {error}): give a folder that accelerator.save_state wrote "
            "on all ranks after prepare(accelerator, loader, ...)"
        ) from error
    return state


def _check_loader(accelerator: Accelerator, loader: Loader) -> None:
    if not isinstance(loader, Loader):
        raise ConfigError(f"the second argument of prepare must be a Loader, not {loader!r}: give models after it")
    if accelerator.distributed_type in OWN_ACCUMULATION:
        raise ConfigError(
            f"accelerate runs {accelerator.distributed_type.value}, which divides the loss and counts micro-steps by "
            "itself: use DDP or FSDP"
        )
    if accelerator.dispatch_batches:
        raise ConfigError(
            "dispatch_batches is True: rank 0 would read for all ranks, but every rank's Loader reads its own share; "
            "leave it out of DataLoaderConfiguration"
        )
    if accelerator.split_batches:
        raise ConfigError(
            "split_batches is True: batches would be cut over ranks again, but a Loader's batch is this rank's own; "
            "leave it out of DataLoaderConfiguration"
        )
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
            "Accelerator before the Loader, and without GPUs as Accelerator(cpu=True), or else each rank trains alone"
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
            "accelerate moves a prepared scheduler on %d times an update, as if batches were of fixed size: use "
            "odb_stream.adapters.torch.SampleSchedule, or do not give the scheduler to prepare",
            ranks,
        )
