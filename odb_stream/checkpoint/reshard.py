"""Elastic: what is left of an epoch when a merged state is loaded, whatever the number of ranks was and is."""

from collections.abc import Mapping, Sequence
from typing import Any

from odb_stream.checkpoint.codec import pack_rows, saved_step, unpack_rows
from odb_stream.checkpoint.fit import Carried, Saved, check_settings_and_data, left_of
from odb_stream.config import World
from odb_stream.errors import StateError
from odb_stream.loader.statistics import Totals
from odb_stream.nodes.drops import DropCounts
from odb_stream.sample import Remaining
from odb_stream.sources.remaining import normalised, of_held
from odb_stream.sources.source import OpenSource, Reading


def is_merged(state: Mapping[str, Any]) -> bool:
    """Whether the content of a state came from :func:`odb_stream.checkpoint.merge`."""
    return "owners" in state


def merged_from(state: Mapping[str, Any], identity: Mapping[str, Any], source: OpenSource, seed: int) -> Saved:
    """Where this rank begins with a merged state: its share of what all old ranks had not emitted.

    Reads the indexes of shards that were being read. Raises StateError, naming both numbers of ranks, where there are
    none, and as :func:`odb_stream.checkpoint.fit.saved_from` does.
    """
    check_settings_and_data(state, identity)
    rank, ranks = identity["rank"], identity["world_size"]
    carried = Carried.from_plain(state["carried"])
    if rank:
        carried = carried._replace(drops=DropCounts(), received=0, solo=0)
    try:
        rest = None if _untouched(state) else pack_rows(_rest_of(state, source, seed))
    except StateError as error:
        raise StateError(
            f"the states were saved on {state['world_size']} ranks and there are {ranks} now, but what is left of the "
            f"epoch cannot be told: {error}"
        ) from error
    everyone = Totals.from_plain(state["report"]["everyone"])
    return Saved(state["epoch"], state["stream"], Totals(), everyone, rest=rest, carried=carried)


def reading_of(rest: str, source: OpenSource, world: World, seed: int) -> Reading:
    """One rank's share of the rest of an epoch."""
    return source.share_of(rows_from(rest), world, seed=seed)


def rows_from(rest: str) -> list[Remaining]:
    """The rows that :func:`pack_rows` wrote."""
    return [Remaining(*row) for row in unpack_rows(rest, len(Remaining._fields))]


def _untouched(state: Mapping[str, Any]) -> bool:
    """Whether nothing of the epoch was emitted yet."""
    return state["rest"] is None and all(owner["progress"] is None for owner in state["owners"])


def _rest_of(state: Mapping[str, Any], source: OpenSource, seed: int) -> Sequence[Remaining]:
    if all(owner["progress"] is None for owner in state["owners"]):
        return rows_from(state["rest"])
    rows: list[Remaining] = []
    for owner in state["owners"]:
        place = saved_step(owner["progress"]).begin()
        world = World(owner["rank"], state["world_size"])
        packer = place.round.packer
        rows += of_held(left_of(place))
        if packer.source_ended:
            continue
        if state["rest"] is None:
            reading = source.reading(world, seed=seed, epoch=packer.pass_number)
        else:
            reading = reading_of(state["rest"], source, world, seed)
        rows += reading.remaining(packer.position)
    return normalised(rows)
