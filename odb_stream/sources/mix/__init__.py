"""Mix as a source: several pipelines read as one, in stated proportions or each a stated number of times."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Protocol, get_args, runtime_checkable

from odb_stream.config import require_choice, require_int
from odb_stream.errors import ConfigError
from odb_stream.sample import Drop, Record
from odb_stream.sources.dataset import FromDataset
from odb_stream.sources.mix.reading import Mode, OpenMix, empty
from odb_stream.sources.mix.schedule import whole_weights
from odb_stream.sources.shards import OpenShards
from odb_stream.sources.source import Opener, OpenSource, Source

logger = logging.getLogger(__name__)

EXAMPLE = 'Mix({"chat": (Pipeline(...), 0.7), "code": (Pipeline(...), 0.3)})'


@runtime_checkable
class SourceWithStages(Protocol):
    """What a Mix takes: a Pipeline."""

    @property
    def source(self) -> Source:
        """Where samples come from."""

    @property
    def stages(self) -> tuple[Any, ...]:
        """What happens to each of them."""


@dataclass(frozen=True, init=False)
class Mix:
    """Several sources, each with stages of its own, as one source for a Pipeline.

    Args:
        sources: a pipeline and its weight, by name. Each source's samples pass its own stages, then those of the
            Pipeline around the mix. Their ``ref.source`` is the position of the source in ``sources``.
        mode: ``"weights"`` takes positive numbers; only their proportion matters. After any number n of records of a
            rank, each of k sources has given ``n * weight / sum of weights`` of them, to within ``1 - 1 / (2k - 2)``
            of a record (dropped ones count). An epoch ends on a rank when each source was read once; sources that end
            earlier start over, with other random draws, as often as it takes.
            ``"once"`` takes whole numbers: each source is read exactly that many times an epoch, spread evenly over it
            if all sources know their length, and otherwise in turns by weight until they end.

    A rank mixes its own part of each source, so over R ranks the bound is R times as large. A rank that has no sample
    of a source leaves that source out; mode ``"weights"`` warns of it. The same data may be listed twice: the order
    and all random draws differ.

    Raises:
        ConfigError: fewer than two sources, an invalid weight, or something that is not a pipeline; on opening, a
            source without samples, or the same data twice without shuffling.
    """

    names: tuple[str, ...]
    pipelines: tuple[SourceWithStages, ...]
    weights: tuple[int | float, ...]
    mode: Mode

    def __init__(self, sources: Mapping[str, tuple[SourceWithStages, int | float]], *, mode: Mode = "weights") -> None:
        require_choice("mode of a Mix", mode, get_args(Mode))
        if not isinstance(sources, Mapping):
            raise ConfigError(f"Mix needs a dict of sources, not {sources!r}: write {EXAMPLE}")
        if len(sources) < 2:
            held = ", ".join(map(repr, sources)) or "none"
            raise ConfigError(f"Mix needs at least two sources, but there is {held}: give its Pipeline to the Loader")
        pairs = [_checked(name, entry, mode) for name, entry in sources.items()]
        pipelines, weights = zip(*pairs, strict=True)
        values = {"names": tuple(sources), "pipelines": pipelines, "weights": weights, "mode": mode}
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def open(self) -> OpenMix:
        """Open every source. Raises what they raise, and ConfigError as above."""
        sources = tuple(pipeline.source.open() for pipeline in self.pipelines)
        for name, source in zip(self.names, sources, strict=True):
            if source.samples == 0:
                raise empty(name)
        _check_same_data(self.names, sources)
        weights = tuple(map(int, self.weights)) if self.mode == "once" else whole_weights(self.weights)
        return OpenMix(self.names, sources, weights, self.mode)

    def opener(self) -> Opener:
        """Calls the opener of the record's source."""
        # A partial of a module's function, which pickles; a closure would not.
        return partial(_open, tuple(pipeline.source.opener() for pipeline in self.pipelines))


def _open(openers: Sequence[Opener], record: Record) -> Mapping[str, Any] | Drop:
    return openers[record.ref.source](record)


def _checked(name: object, entry: object, mode: Mode) -> tuple[SourceWithStages, int | float]:
    """A pipeline and its weight. Raises ConfigError, with the source's name, for anything else."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a source of a Mix must be a string, not {name!r}: write {EXAMPLE}")
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise ConfigError(f"source {name!r} of the Mix must be a pair (pipeline, weight), not {entry!r}")
    pipeline, weight = entry
    if isinstance(pipeline, type) or not isinstance(pipeline, SourceWithStages):
        raise ConfigError(f"source {name!r} of the Mix must be a Pipeline, not {pipeline!r}: write Pipeline(source)")
    if isinstance(pipeline.source, Mix):
        raise ConfigError(f"source {name!r} of the Mix is itself a Mix: list all sources in one")
    field = f"the weight of source {name!r} of the Mix"
    if mode == "once":
        require_int(f"{field} (with mode='once', the passes of an epoch)", weight, minimum=1)
    elif isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ConfigError(f"{field} must be a number, not {weight!r}")
    elif not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"{field} is {weight}, but must be finite and above 0; remove the source to leave it out")
    return pipeline, weight


def _check_same_data(names: Sequence[str], sources: Sequence[OpenSource]) -> None:
    """Warn of sources that read the same data. Raises ConfigError where they would be read in step."""
    ours = [(name, one) for name, one in zip(names, sources, strict=True) if isinstance(one, OpenShards | FromDataset)]
    for (name, one), (other_name, other) in combinations(ours, 2):
        if not _data(one) & _data(other):
            continue
        if not (one.shuffle or other.shuffle):
            raise ConfigError(
                f"sources {name!r} and {other_name!r} of the mix read the same data in the same order: "
                "set shuffle=True for one of them"
            )
        logger.warning(
            "sources %r and %r of the mix read the same data: such a sample comes up in both, in another order and "
            "with other draws",
            name,
            other_name,
        )


def _data(source: OpenShards | FromDataset) -> set[str | int]:
    """What identifies the data of a source."""
    return {id(source.dataset)} if isinstance(source, FromDataset) else set(source.addresses)
