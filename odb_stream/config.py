"""Frozen settings, validated once when they are built; every error names the field and its value."""

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, get_args

from odb_stream.errors import ConfigError

if TYPE_CHECKING:  # every worker process imports this module, and torch would cost each of them seconds
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Layout = Literal["padded", "packed"]
Closure = Literal["join", "quota"]
Oversize = Literal["error", "drop", "solo"]
MixedModality = Literal["auto", "dummy", "off"]
Policy = Literal["anchored", "paper-window", "fixed", "gmt", "bmt"]

MEBIBYTE = 1024 * 1024
DEFAULT_BUDGET = 16_384
"""Tokens of a step in commands and inspections that are given no budget; a Loader has no default."""


@dataclass(frozen=True)
class World:
    """The place of this rank among the data-parallel ranks.

    Args:
        rank: the number of this rank, from 0.
        size: the number of ranks.
        group: the process group to align over; None uses the default group.
        places: the data-parallel rank of each process of the group, where several processes share a rank;
            :meth:`from_mesh` sets it.
    """

    rank: int = 0
    size: int = 1
    group: "ProcessGroup | None" = None
    places: tuple[int, ...] | None = None

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dims: tuple[str, ...] = ("dp",)) -> "World":
        """The place in a ``torch.distributed`` device mesh whose data-parallel dimensions are ``dims``.

        Processes that differ only in other dimensions, such as those of one tensor-parallel group, are peers: they see
        identical batches. Alignment spans the whole mesh, which must contain every process of the job.

        Raises ConfigError for dimensions that the mesh does not have, and for a mesh that leaves processes out.
        """
        names = tuple(mesh.mesh_dim_names or ())
        missing = [name for name in dims if name not in names]
        if missing or not dims:
            raise ConfigError(
                f"the mesh has no dimension {missing or dims}, only {names}: name its data-parallel dimensions in dims"
            )
        table = mesh.mesh  # a tensor of process numbers, with one dimension for each dimension of the mesh
        processes = sorted(table.flatten().tolist())
        if processes != list(range(len(processes))):
            raise ConfigError(
                f"the mesh contains the processes {processes}, but it must contain every process of the job, from 0 "
                "on: pass the whole mesh and name its data-parallel dimensions in dims"
            )
        own = [names.index(name) for name in dims]
        size = math.prod(table.shape[dimension] for dimension in own)
        # One row for each data-parallel rank, holding the processes that share it.
        by_rank = table.movedim(own, list(range(len(own)))).reshape(size, -1)
        places = {process: rank for rank, peers in enumerate(by_rank.tolist()) for process in peers}
        return cls(places[mesh.get_rank()], size, places=tuple(places[process] for process in processes))

    def __post_init__(self) -> None:
        require_int("World.size", self.size, minimum=1)
        require_int("World.rank", self.rank, minimum=0)
        if self.rank >= self.size:
            raise ConfigError(f"World.rank is {self.rank}, but World.size is {self.size}: ranks run from 0 to size - 1")


@dataclass(frozen=True)
class Budget:
    """The hard bound on the batch of one rank in one step.

    Args:
        tokens: most tokens in the batch, padding included.
        patches: most vision patches in its images; None for no bound.
        samples: most samples in the batch; None for no bound.
    """

    tokens: int
    patches: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        require_int("Budget.tokens", self.tokens, minimum=1)
        for name, value in (("patches", self.patches), ("samples", self.samples)):
            if value is not None:
                require_int(f"Budget.{name}", value, minimum=1)


@dataclass(frozen=True, kw_only=True)
class FailureBudget:
    """How much damaged data a run tolerates, over all ranks. Beyond it all ranks stop at the same step.

    Damaged data cannot be read as they were written: parts of a shard, files that are not images, text that is not
    UTF-8. Samples that a stage drops on purpose do not count.

    Args:
        samples: damaged samples in an epoch; None for no bound.
        share: damaged samples as a share of the records read so far in the epoch, of which at least
            ``LEAST_RECORDS`` are assumed; None for no bound.
    """

    samples: int | None = None
    share: float | None = 0.05

    def __post_init__(self) -> None:
        if self.samples is not None:
            require_int("FailureBudget.samples", self.samples, minimum=0)
        share = self.share
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
            raise ConfigError(f"FailureBudget.share is {share!r}, but must be a number from 0 to 1, or None")

    def allowed(self, records: int) -> int | None:
        """The number of damaged samples tolerated among this many records; None for any number."""
        by_share = None if self.share is None else int(self.share * max(records, LEAST_RECORDS))
        bounds = [bound for bound in (self.samples, by_share) if bound is not None]
        return min(bounds, default=None)


LEAST_RECORDS = 1000
"""A share of damaged samples is taken of at least this many records, because the first few say little."""

EACH_RANK = {"shared": False}
"""Marks a setting that may differ between ranks."""
DECIDES_NO_BATCH = {"decides_batches": False}
"""Marks a setting that may change when a run is resumed, because no batch depends on it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a Loader; see :class:`odb_stream.Loader` for their meaning.

    Unless a field is marked, it must be equal on all ranks and when a run is resumed: a setting that somebody forgets
    to mark is checked too often, never too rarely.
    """

    budget: Budget
    layout: Layout = "padded"
    window: int = 1024
    lookahead: int = 128
    workers: int = field(default=0, metadata=EACH_RANK)
    seed: int = 0
    closure: Closure = "join"
    quota: int | None = None
    rebalance: bool = True
    oversize: Oversize = "error"
    mixed_modality: MixedModality = "auto"
    failure_budget: FailureBudget = field(default=FailureBudget(), metadata=DECIDES_NO_BATCH)
    max_bytes: int = 512 * MEBIBYTE
    grad_accum: int = 1
    timeout: float = field(default=600.0, metadata=EACH_RANK)
    pad_token_id: int = 0
    pad_to_multiple_of: int = 1
    pin_memory: bool = field(default=False, metadata=EACH_RANK)

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise ConfigError(f"budget must be a Budget, not {self.budget!r}: write budget=odb.Budget(tokens=16_384)")
        if not isinstance(self.failure_budget, FailureBudget):
            raise ConfigError(
                f"failure_budget must be a FailureBudget, not {self.failure_budget!r}: write "
                "failure_budget=odb.FailureBudget(share=0.01)"
            )
        require_choice("layout", self.layout, get_args(Layout))
        require_choice("oversize", self.oversize, get_args(Oversize))
        require_choice("mixed_modality", self.mixed_modality, get_args(MixedModality))
        require_choice("closure", self.closure, get_args(Closure))
        for name in ("window", "lookahead", "max_bytes", "pad_to_multiple_of", "grad_accum"):
            require_int(name, getattr(self, name), minimum=1)
        for name in ("workers", "seed", "pad_token_id"):
            require_int(name, getattr(self, name), minimum=0)
        if not isinstance(self.rebalance, bool):
            raise ConfigError(f"rebalance must be True or False, not {self.rebalance!r}")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ConfigError(f"timeout is {self.timeout!r}, but must be a number of seconds above 0")
        if self.closure == "quota":
            require_int("quota (with closure='quota')", self.quota, minimum=1)
        elif self.quota is not None:
            raise ConfigError(f"quota is {self.quota}, but closure is 'join': set closure='quota', or leave quota out")
        if self.pad_to_multiple_of > self.budget.tokens:
            raise ConfigError(
                f"pad_to_multiple_of is {self.pad_to_multiple_of}, larger than Budget.tokens ({self.budget.tokens}): "
                "no batch could fit"
            )


_SHARED = [setting for setting in fields(Settings) if setting.metadata.get("shared", True)]
SHARED_SETTINGS = tuple(setting.name for setting in _SHARED)
"""Settings that must be equal on all ranks, in the order in which differences are reported."""
BATCH_SETTINGS = tuple(setting.name for setting in _SHARED if setting.metadata.get("decides_batches", True))
"""Settings that a resumed run must share with the run that saved the state."""


def require_int(name: str, value: object, *, minimum: int) -> None:
    """Raise a ConfigError that names the field unless ``value`` is an integer (no bool) of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if value < minimum:
        raise ConfigError(f"{name} is {value}, but must be at least {minimum}")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ConfigError that names the field and the choices unless ``value`` is one of them."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, but must be one of: {', '.join(choices)}")
