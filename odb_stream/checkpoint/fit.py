"""Resume: what a loader's state says, whether it fits a loader, and :func:`merge` for another number of ranks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from odb_stream.checkpoint.codec import SavedStep, saved_step
from odb_stream.checkpoint.state import Place
from odb_stream.config import BATCH_SETTINGS, Settings, World
from odb_stream.errors import StateError
from odb_stream.loader.statistics import Totals
from odb_stream.nodes.align import Accumulation
from odb_stream.nodes.drops import DropCounts
from odb_stream.nodes.pack import Held, PackSnapshot

VERSION = 1


class Carried(NamedTuple):
    """What was done in an epoch before its ranks changed: steps, samples over all ranks, and what was dropped.

    One rank takes over the drops of all: the sum over ranks stays true.
    """

    steps: int
    samples_seen: int
    drops: DropCounts = DropCounts()
    received: int = 0
    solo: int = 0
    max_delay: int = 0

    def packer(self, pass_number: int) -> PackSnapshot:
        """Where packing begins, with these counts."""
        start = PackSnapshot.start(pass_number)
        return start._replace(received=self.received, solo=self.solo, max_delay=self.max_delay)

    def plain(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**self._asdict(), "drops": self.drops.plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Carried":
        """What :meth:`plain` wrote."""
        return cls(**{**plain, "drops": DropCounts.from_plain(plain["drops"])})


@dataclass(frozen=True, slots=True)
class Saved:
    """What a loader can go on from.

    ``epoch`` is the number of the next step's epoch, ``stream`` that of the stream that makes it (the same unless a
    quota repeats the data). ``step`` is None at the start of an epoch, or of what is left of one, ``rest``, after its
    ranks changed; ``carried`` then says what was done before. ``taken`` counts samples of this rank that the training
    loop took from the stream; ``mine`` and ``everyone`` are the books.
    """

    epoch: int
    stream: int
    mine: Totals
    everyone: Totals
    step: SavedStep | None = None
    accumulation: Accumulation | None = None
    taken: int = 0
    rest: str | None = None
    carried: Carried | None = None

    @property
    def samples_seen(self) -> int:
        """Samples of the epoch that all ranks emitted before."""
        if self.step is not None:
            return self.step.progress.samples_seen
        return 0 if self.carried is None else self.carried.samples_seen

    def plain(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """The state as plain data, fit for JSON; ``identity`` says whose it is."""
        return {
            **identity,
            "epoch": self.epoch,
            "stream": self.stream,
            "progress": None if self.step is None else self.step.plain(),
            "accumulation": None if self.accumulation is None else list(self.accumulation),
            "taken": self.taken,
            "rest": self.rest,
            "carried": None if self.carried is None else self.carried.plain(),
            "report": {"mine": self.mine.plain(), "everyone": self.everyone.plain()},
        }


def identity_of(settings: Settings, world: World, data: str) -> dict[str, Any]:
    """What a state belongs to: the rank, the settings that decide batches, and the data."""
    return {
        "rank": world.rank,
        "world_size": world.size,
        "settings": {name: repr(getattr(settings, name)) for name in BATCH_SETTINGS},
        "data": data,
    }


MERGED = -1
"""The rank of a state that was merged."""


def sealed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A state as users hold it: few values under keys that never change, as checkpoint libraries need it.

    ``content`` is everything, as JSON text; the other values are for the eye.
    """
    progress = plain.get("progress")
    return {
        "version": VERSION,
        "rank": plain.get("rank", MERGED),
        "world_size": plain["world_size"],
        "epoch": plain["epoch"],
        "step": (plain["carried"] or {"steps": 0})["steps"] if progress is None else progress["steps"],
        "content": json.dumps(plain, separators=(",", ":")),
    }


def unsealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`sealed` holds. Raises StateError for anything but a state of this version."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(f"this is no state of a Loader: {str(state)[:80]!r}; give what Loader.state_dict() returned")
    if state["version"] != VERSION:
        raise StateError(f"the state has version {state['version']!r}, this package reads {VERSION}")
    try:
        content: dict[str, Any] = json.loads(state["content"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged ({type(error).__name__}: {error}): load it as it was saved") from error
    return content


def saved_from(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Saved:
    """Read a state's content, which must belong to ``identity``. Raises StateError that names what differs."""
    _check_ranks(state, identity)
    check_settings_and_data(state, identity)
    try:
        progress = state["progress"]
        accumulation = state["accumulation"]
        return Saved(
            epoch=state["epoch"],
            stream=state["stream"],
            step=None if progress is None else saved_step(progress),
            accumulation=None if accumulation is None else Accumulation(*accumulation),
            taken=state["taken"],
            rest=state["rest"],
            carried=None if state["carried"] is None else Carried.from_plain(state["carried"]),
            mine=Totals.from_plain(state["report"]["mine"]),
            everyone=Totals.from_plain(state["report"]["everyone"]),
        )
    except (KeyError, TypeError) as error:
        raise StateError(f"the state is damaged ({type(error).__name__}: {error}): load it as it was saved") from error


def _check_ranks(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    was, now = state.get("world_size"), identity["world_size"]
    if was != now:
        raise StateError(
            f"the state was saved on {was} ranks, and there are {now} now: give the states of all {was} ranks to "
            "odb_stream.checkpoint.merge and load what it returns on every rank (needs an index beside every shard)"
        )
    if state.get("rank") != identity["rank"]:
        raise StateError(
            f"the state is that of rank {state.get('rank')}, but this is rank {identity['rank']}: load on each rank "
            "the state that it saved"
        )


def check_settings_and_data(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise a StateError that names every setting that differs, or the data."""
    was, now = state.get("settings") or {}, identity["settings"]
    changed = [f"{name} was {was.get(name)} and is {value}" for name, value in now.items() if was.get(name) != value]
    if changed:
        raise StateError(
            f"the state belongs to other settings: {'; '.join(changed)}. Go on with the settings it was saved with"
        )
    if state.get("data") != identity["data"]:
        raise StateError(
            f"the state belongs to other data ({state.get('data')}) than this Loader reads ({identity['data']}): give "
            "the same shards, or the same dataset"
        )


def merge(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state from those that all ranks saved after the same step, to be loaded on every rank of any number of ranks.

    What follows is the rest of the epoch, each sample once, in new batches; the next epochs are those of the new
    number of ranks. States saved on the way can be merged again. Nothing is read here: that the shards have the indexes
    which this needs is found by ``load_state_dict``.

    Raises:
        StateError: a rank's state is missing or there twice, they are of different steps (which it names), settings
            or data, or the run has a quota: its epochs are no passes over the data.
    """
    given = sorted(map(unsealed, states), key=lambda state: state.get("rank", MERGED))
    if not given:
        raise StateError("there is no state to merge: give those that all ranks saved after the same step")
    first = given[0]
    ranks = [state.get("rank", MERGED) for state in given]
    if any("owners" in state for state in given) or ranks != list(range(first["world_size"])):
        raise StateError(
            f"the states are of the ranks {ranks}, but those of all {first.get('world_size')} ranks are needed, each "
            "once: collect what every rank saved after the same step"
        )
    for state in given:
        _check_same_run(state, first)
    if "join" not in first["settings"]["closure"]:
        raise StateError(
            "closure is 'quota': an epoch is then no pass over the data, and no other number of ranks can end it; go "
            f"on with {first['world_size']} ranks"
        )
    return sealed(
        {
            **{name: first[name] for name in ("world_size", "settings", "data", "epoch", "stream", "rest")},
            "carried": carried_over(given).plain(),
            "owners": [{"rank": state["rank"], "progress": state["progress"]} for state in given],
            "report": {"everyone": first["report"]["everyone"]},
        }
    )


def _check_same_run(state: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    check_settings_and_data(state, first)
    for words, place in (("ranks", "world_size"), ("epochs", "epoch"), ("streams", "stream"), ("parts", "rest")):
        if state[place] != first[place]:
            raise StateError(
                f"the states are of different {words}: rank {first['rank']} has {first[place]}, rank {state['rank']} "
                f"has {state[place]}; give those of the same step"
            )
    steps = [0 if one["progress"] is None else one["progress"]["steps"] for one in (first, state)]
    if steps[0] != steps[1]:
        raise StateError(
            f"the states are of different steps of epoch {state['epoch']}: rank {first['rank']} has made {steps[0]}, "
            f"rank {state['rank']} {steps[1]}; give those of the same step"
        )


def carried_over(states: Sequence[Mapping[str, Any]]) -> Carried:
    """What all ranks did in the epoch, from their states."""
    steps = [saved_step(state["progress"]) for state in states if state["progress"] is not None]
    if not steps:
        known = [Carried.from_plain(state["carried"]) for state in states if state["carried"] is not None]
        return known[0] if known else Carried(0, 0)
    packers = [step.begin().round.packer for step in steps]
    return Carried(
        steps=steps[0].progress.steps,
        samples_seen=steps[0].progress.samples_seen,
        drops=DropCounts.total(step.progress.packer for step in steps),
        received=sum(packer.received for packer in packers),
        solo=sum(packer.solo for packer in packers),
        max_delay=max(packer.max_delay for packer in packers),
    )


def left_of(place: Place) -> list[Held]:
    """The samples that a rank held and did not emit: the rest of its round, its surplus groups and its window."""
    state, progress = place
    groups = [*state.mine[progress.place + 1 :], *state.surplus]
    return [*(held for group in groups for held in group or ()), *state.packer.held]
