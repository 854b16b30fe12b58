"""What is settled when a loader is built: this rank's place, the connection, and that all ranks mean the same."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch.distributed as dist

from odb_stream.config import SHARED_SETTINGS, MixedModality, Settings, World
from odb_stream.errors import ConfigError
from odb_stream.nodes.modality import DummyImage, DummyRule
from odb_stream.pipeline import Pipeline
from odb_stream.runtime.gloo import Gloo
from odb_stream.runtime.mirrored import Mirrored
from odb_stream.runtime.transport import Local, Transport
from odb_stream.shardio.source import Segment
from odb_stream.stages.visual import expander


def current_world() -> World:
    """This process's place by torch.distributed, or alone where that is not running."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size())


def connect(world: World, timeout: float) -> Transport:
    """A transport between the ranks of a world. All of them must call this."""
    if world.size == 1 and world.places is None:
        return Local()
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"World.size is {world.size}, but torch.distributed is not running: call init_process_group first"
        )
    if world.places is not None:
        whole = World(dist.get_rank(), len(world.places), world.group)
        return Mirrored(Gloo(whole, timeout=timeout), world.places)
    return Gloo(world, timeout=timeout)


def dummy_image(pipeline: Pipeline, mode: MixedModality, ranks: int) -> DummyRule | None:
    """The image that ranks without one are given, and when; None where there is no need."""
    expand = expander(pipeline.all_stages)
    if mode == "off" or (mode == "auto" and (ranks == 1 or expand is None)):
        return None
    if expand is None:
        raise ConfigError("mixed_modality is 'dummy', but the pipeline has no ExpandVisualTokens: there are no images")
    return DummyRule(DummyImage.of(expand), always=mode == "dummy")


def leave(transport: Transport) -> None:
    transport.leave()
    transport.close()


def agree(settings: Settings, transport: Transport) -> None:
    """Raise a ConfigError, on every rank, that names the first setting in which ranks differ."""
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


def plan_in_words(world: World, plan: Sequence[Segment], samples: int | None) -> str:
    """What a rank reads in the first epoch, in words."""
    count = "samples not yet counted" if samples is None else f"{samples:,} samples"
    words = f"rank {world.rank} of {world.size} reads {count}"
    if plan:
        words += f" in {len({(part.address) for part in plan}):,} shards"
        parts = sum(part.start > 0 or part.offset > 0 for part in plan)
        if any(part.step > 1 for part in plan):
            words += f", of which it keeps each {plan[0].step}-th (an index beside every shard would spare the others)"
        elif samples is None:
            words += " as a whole (not all have an index)"
        elif parts:
            words += f", {parts} of them from the middle"
    return words


def total_samples(samples: int | None, transport: Transport) -> int | None:
    """Samples over all ranks; None when some rank does not know its own."""
    known = transport.gather(np.array([-1 if samples is None else samples], dtype=np.int64))[:, 0].tolist()
    return None if -1 in known else sum(known)
