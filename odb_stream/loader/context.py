"""LoaderContext: what the epochs of a loader share; none of them changes it."""

from dataclasses import dataclass

from odb_stream.batching.cost import Footprint
from odb_stream.config import Settings, World
from odb_stream.nodes.mixed_modality import DummyRule
from odb_stream.ranks.transport import Transport
from odb_stream.shards.quarantine import Quarantine
from odb_stream.sources.source import OpenSource, Segment
from odb_stream.workers.pool import WorkerPool


@dataclass(frozen=True)
class LoaderContext:
    """The opened source, the settings, and what was started for them: worker pool, transport, quarantine file.

    ``samples`` counts the records of an epoch over all ranks, None if unknown before reading. ``plan`` is what this
    rank reads in the first epoch. ``dummy`` is None where no rank may need a dummy image.
    """

    source: OpenSource
    samples: int | None
    plan: tuple[Segment, ...]
    settings: Settings
    world: World
    pool: WorkerPool
    transport: Transport
    dummy: DummyRule | None
    quarantine: Quarantine | None

    @property
    def footprint(self) -> Footprint:
        """The cost rule, with room for the dummy image where a group may get one: its batch keeps the budget too."""
        if self.dummy is None:
            return Footprint.of(self.settings)
        image = self.dummy.image
        return Footprint.of(self.settings, dummy_tokens=image.tokens, dummy_patches=image.image.patches)
