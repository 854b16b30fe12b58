"""Settings, frozen and validated once, at the door; every message names the field and the value."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from odb_stream.errors import ConfigError

Layout = Literal["padded", "packed"]
Closure = Literal["join", "quota"]
Oversize = Literal["error", "drop", "solo"]
MixedModality = Literal["auto", "dummy", "off"]
Policy = Literal["anchored", "paper-window", "fixed", "gmt", "bmt"]

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class World:
    """This rank's place among the data-parallel ranks: ``rank`` of ``size``, from 0.

    ``group`` is the process group to align over; None takes the default group. ``places`` is set by :meth:`from_mesh`:
    the data-parallel rank of each process of the group, where several share one.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    places: tuple[int, ...] | None = None

    @classmethod
    def from_mesh(cls, mesh: Any, dims: tuple[str, ...] = ("dp",)) -> "World":
        """The place in a ``torch.distributed`` device mesh of which ``dims`` are the data-parallel dimensions.

        Processes that differ in other dimensions only, such as those of one tensor-parallel group, are peers: they see
        identical batches. Alignment spans the whole mesh, which must hold every process of the job.

        Raises ConfigError for dimensions that the mesh does not have, and for a mesh that leaves processes out.
        """
        names = tuple(mesh.mesh_dim_names or ())
        missing = [name for name in dims if name not in names]
        if missing or not dims:
            raise ConfigError(f"the mesh has no dimension {missing or dims}, only {names}: name the data-parallel ones")
        table = mesh.mesh  # a tensor of ranks, with one dimension for each of the mesh
        processes = sorted(table.flatten().tolist())
        if processes != list(range(len(processes))):
            raise ConfigError(
                f"the mesh holds the processes {processes}, but must hold every process of the job, from 0 on: give "
                "the whole mesh and name its data-parallel dimensions in dims"
            )
        own = [names.index(name) for name in dims]
        size = math.prod(table.shape[at] for at in own)
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
    """The hard bound on one rank's step.

    Args:
        tokens: of the batch, padding included.
        patches: vision patches of its images; None for any number.
        samples: in the batch; None for any number.
    """

    tokens: int
    patches: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        require_int("Budget.tokens", self.tokens, minimum=1)
        if self.patches is not None:
            require_int("Budget.patches", self.patches, minimum=1)
        if self.samples is not None:
            require_int("Budget.samples", self.samples, minimum=1)


@dataclass(frozen=True, kw_only=True)
class FailureBudget:
    """How much damaged data a run bears, over all ranks: beyond it the run stops, on all ranks at the same step.

    Damaged is what cannot be read as it was written: parts of a shard, files that are no image, text that is not
    UTF-8. Samples that a stage leaves out on purpose do not count.

    Args:
        samples: damaged samples in an epoch; None for any number.
        share: damaged samples in the records that were read so far in the epoch, of which at least
            ``LEAST_RECORDS`` are taken; None for any share.
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
        """Damaged samples that are borne among that many records; None for any number."""
        by_share = None if self.share is None else int(self.share * max(records, LEAST_RECORDS))
        bounds = [bound for bound in (self.samples, by_share) if bound is not None]
        return min(bounds, default=None)


LEAST_RECORDS = 1000
"""A share of damaged samples is taken of at least so many records: the first few tell little."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a Loader, as the user gave them; see :class:`odb_stream.Loader` for their meaning."""

    budget: Budget
    layout: Layout = "padded"
    window: int = 1024
    lookahead: int = 128
    workers: int = 0
    seed: int = 0
    closure: Closure = "join"
    quota: int | None = None
    rebalance: bool = True
    oversize: Oversize = "error"
    mixed_modality: MixedModality = "auto"
    failure_budget: FailureBudget = FailureBudget()
    max_bytes: int = 512 * MEBIBYTE
    grad_accum: int = 1
    timeout: float = 600.0
    pad_token_id: int = 0
    pad_to_multiple_of: int = 1
    pin_memory: bool = False

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


SHARED_SETTINGS = (
    "budget",
    "layout",
    "window",
    "lookahead",
    "seed",
    "closure",
    "quota",
    "rebalance",
    "oversize",
    "mixed_modality",
    "failure_budget",
    "max_bytes",
    "grad_accum",
    "pad_token_id",
    "pad_to_multiple_of",
)
"""Settings that must be equal on all ranks; ``workers``, ``timeout`` and ``pin_memory`` are each rank's own."""


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
