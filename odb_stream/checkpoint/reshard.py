"""Another world size: the states of all ranks become one, and each new rank loads its share of what they left."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from odb_stream.checkpoint.codec import decode
from odb_stream.checkpoint.fit import check_settings_and_data, seal, unseal
from odb_stream.checkpoint.state import DropCounts, EarlierRanks, MergedState, Place, PreEncoded, RankState, RoundPlace
from odb_stream.errors import StateError

T = TypeVar("T")

def merge(states: Iterable[Mapping[str, object]]) -> dict[str, int | str]:
    """One state from those that all ranks saved after the same step, to be loaded on every rank of any number of ranks.

    What follows is the rest of the epoch, each sample once, in new batches; the next epochs are those of the new
    number of ranks. States saved on the way can be merged again. Nothing is read here: ``load_state_dict`` finds out
    whether the shards have the indexes that this needs.

    Raises:
        StateError: a rank's state is missing or there twice, they are of different steps (which it names), settings
            or data, or the run has a quota: its epochs are not passes over the data.
    """
    given = [unseal(state) for state in states]
    if not given:
        raise StateError("there is no state to merge: pass those that all ranks saved after the same step")
    own = sorted((state for state in given if isinstance(state, RankState)), key=lambda state: state.rank)
    ranks, world_size = [state.rank for state in own], given[0].identity.world_size
    if len(own) < len(given) or ranks != list(range(world_size)):
        raise StateError(
            f"the states are of the ranks {ranks}{' and merged ones' * (len(own) < len(given))}, but those of all "
            f"{world_size} ranks are needed, each once: collect what every rank saved after the same step"
        )
    first = own[0]
    for state in own:
        _check_same_step(state, first)
    if "join" not in first.identity.settings["closure"]:
        raise StateError(
            "closure is 'quota': an epoch is then not a pass over the data, and no other number of ranks can end it; "
            f"continue with {world_size} ranks"
        )
    return seal(
        MergedState(
            identity=first.identity,
            epoch=first.state.epoch,
            pass_number=first.state.pass_number,
            remaining=first.state.remaining,
            places=tuple(state.state.place for state in own),
            earlier=_earlier(own),
            everyone=first.state.everyone,
        )
    )


def _check_same_step(state: RankState, first: RankState) -> None:
    check_settings_and_data(state.identity, first.identity)
    for word, name in (("epochs", "epoch"), ("passes", "pass_number"), ("remaining samples", "remaining")):
        mine, theirs = getattr(first.state, name), getattr(state.state, name)
        if mine != theirs:
            raise StateError(
                f"the states are of different {word}: rank {first.rank} has {mine!s:.80}, rank {state.rank} has "
                f"{theirs!s:.80}; pass those of the same step"
            )
    if state.state.steps != first.state.steps or (state.state.place is None) != (first.state.place is None):
        raise StateError(
            f"the states are of different steps of epoch {state.state.epoch}: rank {first.rank} has made "
            f"{first.state.steps}, rank {state.rank} {state.state.steps}; pass those of the same step"
        )


def place_of(saved: RoundPlace) -> Place:
    """Where a rank's program continues, its round decoded."""
    return Place(decoded(saved.round), saved.step)


def decoded(encoded: PreEncoded[T]) -> T:
    """The value itself."""
    return decode(encoded.kind, encoded.plain)


def _earlier(states: Sequence[RankState]) -> EarlierRanks:
    """What all ranks did in the epoch."""
    places = [place_of(state.state.place) for state in states if state.state.place is not None]
    if not places:
        return next((state.state.earlier for state in states if state.state.earlier is not None), EarlierRanks())
    windows = [place.round.window for place in places]
    return EarlierRanks(
        steps=places[0].step.steps,
        samples_seen=places[0].step.samples_seen,
        drops=DropCounts.sum(place.step.drops for place in places),
        received=sum(window.received for window in windows),
        solo=sum(window.solo for window in windows),
        max_delay=max(window.max_delay for window in windows),
    )
