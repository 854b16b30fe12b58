"""Pipeline: a source and the stages that its samples pass through, as one picklable declaration."""

from dataclasses import dataclass
from typing import Any

from odb_stream.errors import ConfigError
from odb_stream.sample import Stage
from odb_stream.sources.mix import Mix
from odb_stream.sources.source import Source


@dataclass(frozen=True, init=False)
class Pipeline:
    """Where samples come from and what happens to each of them.

    Args:
        source: a :class:`Shards`, :class:`FromDataset` or :class:`Mix`.
        stages: callables ``sample -> sample | Drop``, applied in order. After a mix they apply to the samples of all
            its sources, after the stages of each. With workers they must be picklable.

    Raises:
        ConfigError: the first argument is not a source, or a stage cannot be called.
    """

    source: Source
    stages: tuple[Stage, ...]

    def __init__(self, source: Source, *stages: Any) -> None:
        if not (hasattr(source, "open") and hasattr(source, "opener")):
            raise ConfigError(
                "the first argument of Pipeline must be a source such as Shards(...) or FromDataset(...), "
                f"not {source!r}"
            )
        for place, stage in enumerate(stages):
            if isinstance(stage, type) or not callable(stage):
                raise ConfigError(
                    f"stage {place} of the pipeline is {stage!r}, which cannot be called with a sample: "
                    "pass an instance or a function"
                )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "stages", tuple(stages))

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The stages of all sources: those of each source of a mix, source after source, then the common ones."""
        if not isinstance(self.source, Mix):
            return self.stages
        return (*(stage for one in self.source.pipelines for stage in one.stages), *self.stages)
