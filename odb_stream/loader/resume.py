"""Where a loaded state lets this rank begin: at its own place, or with its share of what other ranks left."""

from collections.abc import Sequence
from dataclasses import replace

from odb_stream.checkpoint.codec import encode
from odb_stream.checkpoint.fit import AnyState, check_rank, check_settings_and_data
from odb_stream.checkpoint.reshard import decoded, place_of
from odb_stream.checkpoint.state import (
    DropCounts,
    MergedState,
    PreEncoded,
    RankState,
    RemainingRows,
    RunIdentity,
    RunState,
)
from odb_stream.config import World
from odb_stream.errors import StateError
from odb_stream.sample import Remaining
from odb_stream.sources.remaining import normalised, rows_of_held
from odb_stream.sources.source import OpenSource


def begin_of(state: AnyState, identity: RunIdentity, world: World, source: OpenSource, seed: int) -> RunState:
    """Where this rank begins. Reads the indexes of shards that were being read, if the state is a merged one.

    Raises StateError for a state of other settings, data or ranks, which it names, and where the rest of an epoch
    cannot be shared by another number of ranks.
    """
    if isinstance(state, RankState):
        check_rank(state, identity, world.rank)
        return state.state
    check_settings_and_data(state.identity, identity)
    earlier = state.earlier
    if world.rank:
        # One rank takes over what the old ranks counted, so that the sum over ranks stays true.
        earlier = replace(earlier, drops=DropCounts(), received=0, solo=0)
    try:
        remaining = None if _is_untouched(state) else _encoded(_remaining(state, source, seed))
    except StateError as error:
        raise StateError(
            f"the states were saved on {state.identity.world_size} ranks and there are {world.size} now, but the "
            f"remaining samples of the epoch cannot be determined: {error}"
        ) from error
    return RunState(
        epoch=state.epoch,
        pass_number=state.pass_number,
        everyone=state.everyone,
        remaining=remaining,
        earlier=earlier,
    )


def _is_untouched(state: MergedState) -> bool:
    """Whether nothing of the epoch was emitted yet."""
    return state.remaining is None and not any(state.places)


def _encoded(rows: RemainingRows) -> PreEncoded[RemainingRows]:
    return PreEncoded(RemainingRows, encode(rows, RemainingRows))


def _remaining(state: MergedState, source: OpenSource, seed: int) -> RemainingRows:
    """What all old ranks together had not emitted: what they held, and what they had still to read."""
    before: Sequence[Remaining] | None = None if state.remaining is None else decoded(state.remaining)
    if before is not None and not any(state.places):
        return tuple(before)
    rows: list[Remaining] = []
    for rank, saved in enumerate(state.places):
        if saved is None:
            raise StateError(f"rank {rank} has no place in the epoch, but others have: merge states of the same step")
        place, world = place_of(saved), World(rank, state.identity.world_size)
        window = place.round.window
        rows += rows_of_held(place.held)
        if window.source_ended:
            continue
        if before is None:
            reading = source.reading(world, seed=seed, epoch=window.pass_number)
        else:
            reading = source.share_of(before, world, seed=seed)
        rows += reading.remaining(window.position)
    return normalised(rows)
