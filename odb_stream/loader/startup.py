"""Start-up: the ranks of a loader connect and agree, the source opens, the workers start."""

import hashlib
import logging
from collections.abc import Sequence

import numpy as np
import torch.distributed as dist

from odb_stream.config import SHARED_SETTINGS, MixedModality, Settings, World
from odb_stream.errors import ConfigError
from odb_stream.loader.context import LoaderContext
from odb_stream.nodes.mixed_modality import DummyImage, DummyRule
from odb_stream.prepare.records import prepare_for
from odb_stream.ranks.gloo import Gloo
from odb_stream.ranks.mesh import MeshTransport
from odb_stream.ranks.transport import Local, Transport
from odb_stream.shards.quarantine import Quarantine
from odb_stream.sources.pipeline import Pipeline
from odb_stream.sources.source import Reading, Segment
from odb_stream.stages.visual import expander
from odb_stream.workers.pool import WorkerPool

logger = logging.getLogger(__name__)


def start(
    pipeline: Pipeline, settings: Settings, world: World, quarantine: str | None
) -> tuple[LoaderContext, Reading]:
    """Connect the ranks, check that they agree, open the source and start the workers. All ranks must call this.

    Beside the context it returns the reading of epoch 0, which is opened here because the plan is in it. Raises
    ConfigError where ranks disagree, on all of them, and whatever opening the source raises.
    """
    transport = connect(world, settings.timeout)
    try:
        agree(settings, transport)
        source = pipeline.source.open()
        first = source.reading(world, seed=settings.seed, epoch=0)
        logger.info("%s", plan_in_words(world, first.plan))
        context = LoaderContext(
            source=source,
            samples=total_samples(first.samples, transport),
            plan=first.plan,
            settings=settings,
            world=world,
            transport=transport,
            dummy=dummy_image(pipeline, settings.mixed_modality, world.size),
            quarantine=None if quarantine is None else Quarantine(quarantine, world.rank),
            # Last, so that nothing can fail once its processes run.
            pool=WorkerPool(prepare_for(pipeline, settings.seed), settings.workers),
        )
    except BaseException:
        # Tell the other ranks, which would otherwise wait for this one until the timeout.
        leave(transport)
        raise
    return context, first


def current_world() -> World:
    """The place of this process according to torch.distributed; the only rank if that is not running."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size())


def connect(world: World, timeout: float) -> Transport:
    """The transport between the ranks of a world. All of them must call this."""
    if world.size == 1 and world.places is None:
        return Local()
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"World.size is {world.size}, but torch.distributed is not running: call init_process_group first"
        )
    if world.places is not None:
        whole = World(dist.get_rank(), len(world.places), world.group)
        return MeshTransport(Gloo(whole, timeout=timeout), world.places)
    return Gloo(world, timeout=timeout)


def dummy_image(pipeline: Pipeline, mode: MixedModality, ranks: int) -> DummyRule | None:
    """The image that ranks without images get, and when; None where no rank needs it."""
    expand = expander(pipeline.all_stages)
    if mode == "off" or (mode == "auto" and (ranks == 1 or expand is None)):
        return None
    if expand is None:
        raise ConfigError("mixed_modality is 'dummy', but the pipeline has no ExpandVisualTokens: there are no images")
    return DummyRule(DummyImage.of(expand), always=mode == "dummy")


def leave(transport: Transport) -> None:
    """Tell the other ranks that this one is gone, and close the connection."""
    transport.leave()
    transport.close()


def agree(settings: Settings, transport: Transport) -> None:
    """Raise a ConfigError, on every rank, that names the first setting in which ranks differ."""
    # Digests, because a gather exchanges rows of one length, whatever the values are.
    values = [repr(getattr(settings, name)) for name in SHARED_SETTINGS]
    digests = [hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values]
    table = transport.gather(np.frombuffer(b"".join(digests), dtype=np.int64).copy())
    for name, value, column in zip(SHARED_SETTINGS, values, table.T.tolist(), strict=True):
        for rank, digest in enumerate(column):
            if digest != column[0]:
                raise ConfigError(
                    f"{name} differs between rank 0 and rank {rank} (on this rank, {transport.rank}, it is {value}): "
                    "give every rank the same settings"
                )


def plan_in_words(world: World, plan: Sequence[Segment]) -> str:
    """What a rank reads in the first epoch, in words. A map-style dataset has no plan."""
    who = f"rank {world.rank} of {world.size}"
    if not plan:
        return f"{who} reads its part of a dataset"
    where = f"{len({part.address for part in plan}):,} shards"
    if any(part.step > 1 for part in plan):
        return f"{who} reads {where} and keeps 1 sample in {plan[0].step} because some have no index"
    ends = [part.stop for part in plan]
    if None in ends:
        return f"{who} reads {where} as a whole because some have no index"
    samples = sum(end - part.start for part, end in zip(plan, ends, strict=True) if end is not None)
    return f"{who} reads {samples:,} samples in {where}, split by their indexes"


def total_samples(samples: int | None, transport: Transport) -> int | None:
    """Samples over all ranks; None if some rank does not know its own."""
    # One gather for all ranks, also where this one does not know: a rank that left it out would hang the others.
    known = transport.gather(np.array([-1 if samples is None else samples], dtype=np.int64))[:, 0].tolist()
    return None if -1 in known else sum(known)
