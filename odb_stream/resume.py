"""Resume: what a loader's state says, and the check that it fits the loader that is to go on with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from odb_stream.config import SHARED_SETTINGS, Settings, World
from odb_stream.errors import StateError
from odb_stream.metrics import Totals
from odb_stream.nodes.align import Accumulation
from odb_stream.nodes.saved import SavedStep, saved_step

VERSION = 1
HARMLESS = ("failure_budget",)
"""Shared settings that may change between a state and its use: they decide no batch."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a loader can go on from.

    ``epoch`` is the number of the next step's epoch, ``stream`` that of the stream that makes it (the same unless a
    quota repeats the data). ``step`` is None at the start of an epoch. ``taken`` counts samples of this rank that the
    training loop took from the stream; ``mine`` and ``everyone`` are the books.
    """

    epoch: int
    stream: int
    mine: Totals
    everyone: Totals
    step: SavedStep | None = None
    accumulation: Accumulation | None = None
    taken: int = 0

    def plain(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """The state as plain data, fit for JSON; ``identity`` says whose it is."""
        return {
            "version": VERSION,
            **identity,
            "epoch": self.epoch,
            "stream": self.stream,
            "progress": None if self.step is None else self.step.plain(),
            "accumulation": None if self.accumulation is None else list(self.accumulation),
            "taken": self.taken,
            "report": {"mine": self.mine.plain(), "everyone": self.everyone.plain()},
        }


def identity_of(settings: Settings, world: World, data: str) -> dict[str, Any]:
    """What a state belongs to: the rank, the settings that decide batches, and the data."""
    names = [name for name in SHARED_SETTINGS if name not in HARMLESS]
    return {
        "rank": world.rank,
        "world_size": world.size,
        "settings": {name: repr(getattr(settings, name)) for name in names},
        "data": data,
    }


def saved_from(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Saved:
    """Read a state, which must belong to ``identity``. Raises StateError that names what differs, and the way out."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(f"this is no state of a Loader: {str(state)[:80]!r}; give what Loader.state_dict() returned")
    if state["version"] != VERSION:
        raise StateError(f"the state has version {state['version']!r}, this package reads {VERSION}")
    _check_identity(state, identity)
    try:
        progress = state["progress"]
        accumulation = state["accumulation"]
        return Saved(
            epoch=state["epoch"],
            stream=state["stream"],
            step=None if progress is None else saved_step(progress),
            accumulation=None if accumulation is None else Accumulation(*accumulation),
            taken=state["taken"],
            mine=Totals.from_plain(state["report"]["mine"]),
            everyone=Totals.from_plain(state["report"]["everyone"]),
        )
    except (KeyError, TypeError) as error:
        raise StateError(f"the state is damaged ({type(error).__name__}: {error}): load it as it was saved") from error


def _check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    was, now = state.get("world_size"), identity["world_size"]
    if was != now:
        raise StateError(
            f"the state was saved on {was} ranks, and there are {now} now: give the states of all {was} ranks to "
            "odb_stream.resume.merge and load what it returns on every rank (which needs an index beside every shard)"
        )
    if state.get("rank") != identity["rank"]:
        raise StateError(
            f"the state is that of rank {state.get('rank')}, but this is rank {identity['rank']}: load on each rank "
            "the state that it saved"
        )
    check_settings(state.get("settings") or {}, identity["settings"])
    if state.get("data") != identity["data"]:
        raise StateError(
            f"the state belongs to other data ({state.get('data')}) than this Loader reads ({identity['data']}): give "
            "the same shards, or the same dataset"
        )


def check_settings(was: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise a StateError that names every setting that differs."""
    changed = [f"{name} was {was.get(name)} and is {value}" for name, value in now.items() if was.get(name) != value]
    if changed:
        raise StateError(
            f"the state belongs to other settings: {'; '.join(changed)}. Go on with the settings it was saved with"
        )
