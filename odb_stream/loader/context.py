"""LoaderContext: what all epochs of a loader share and none of them changes."""

from dataclasses import dataclass

from odb_stream.batching.cost import Footprint
from odb_stream.config import Settings, World
from odb_stream.nodes.mixed_modality import DummyRule
from odb_stream.ranks.transport import Transport
from odb_stream.shards.quarantine import Quarantine
from odb_stream.sources.source import OpenSource
from odb_stream.workers.pool import WorkerPool


@dataclass(frozen=True)
class LoaderContext:
    """The opened source, the settings, and what was started for them: worker pool, transport, quarantine file.

    ``dummy`` is None where no rank may need a dummy image. ``footprint`` is the cost rule of every group.
    """

    source: OpenSource
    settings: Settings
    world: World
    pool: WorkerPool
    transport: Transport
    dummy: DummyRule | None
    quarantine: Quarantine | None
    footprint: Footprint
