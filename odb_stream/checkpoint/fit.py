"""Seals a state for users with its version, and checks that one belongs to this loader: rank, settings and data."""

import json
from collections.abc import Mapping
from typing import cast

from odb_stream.checkpoint.codec import decode, encode
from odb_stream.checkpoint.state import Json, MergedState, RankState, RunIdentity
from odb_stream.config import BATCH_SETTINGS, Settings, World
from odb_stream.errors import StateError

VERSION = 2
"""Of the written form. Version 1, from before the types of state were one model, is refused by its number."""
MERGED = -1
"""The rank of a merged state."""

AnyState = RankState | MergedState


def identity_of(settings: Settings, world: World, data: str) -> RunIdentity:
    """What the states of a run belong to; ``data`` is the fingerprint of its source."""
    settings_as_text = {name: repr(getattr(settings, name)) for name in BATCH_SETTINGS}
    return RunIdentity(world_size=world.size, settings=settings_as_text, data=data)


def seal(state: AnyState) -> dict[str, int | str]:
    """A state as users hold it: few values under keys that never change, as checkpoint libraries need it.

    ``content`` is everything, as JSON text; the other values are for the reader's eye.
    """
    if isinstance(state, RankState):
        rank, epoch, steps = state.rank, state.state.epoch, state.state.steps
    else:
        rank, epoch, steps = MERGED, state.epoch, state.earlier.steps
    return {
        "version": VERSION,
        "rank": rank,
        "world_size": state.identity.world_size,
        "epoch": epoch,
        "step": steps,
        "content": json.dumps(encode(state, AnyState), separators=(",", ":")),
    }


def unseal(sealed: Mapping[str, object]) -> AnyState:
    """The state that :func:`seal` wrote. Raises StateError for anything but a state of this version."""
    if not isinstance(sealed, Mapping) or "version" not in sealed:
        raise StateError(f"not a state of a Loader: {str(sealed)[:80]!r}; pass what Loader.state_dict() returned")
    if sealed["version"] != VERSION:
        raise StateError(
            f"the state has version {sealed['version']!r}, this package reads version {VERSION}: finish the run with "
            "the version of odb_stream that saved it, or start an epoch without loading the state"
        )
    try:
        plain = cast(Json, json.loads(cast(str, sealed["content"])))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged ({type(error).__name__}: {error}): load it as it was saved") from error
    return decode(cast(type[AnyState], AnyState), plain)


def check_rank(state: RankState, identity: RunIdentity, rank: int) -> None:
    """Raise a StateError unless the state is that of this rank, of as many ranks, with these settings and data."""
    was, now = state.identity.world_size, identity.world_size
    if was != now:
        raise StateError(
            f"the state was saved on {was} ranks, and there are {now} now: pass the states of all {was} ranks to "
            "odb_stream.checkpoint.merge and load what it returns on every rank (needs an index beside every shard)"
        )
    if state.rank != rank:
        raise StateError(
            f"the state is that of rank {state.rank}, but this is rank {rank}: load that of rank {rank} here, or let "
            "odb_stream.adapters.checkpoint.load find it"
        )
    check_settings_and_data(state.identity, identity)


def check_settings_and_data(was: RunIdentity, now: RunIdentity) -> None:
    """Raise a StateError that names every setting that differs, or the data."""
    changed = [
        f"{name} was {was.settings[name]} and is {value}"
        if name in was.settings
        else f"{name} is {value}, but the version that saved the state did not have this setting"
        for name, value in now.settings.items()
        if was.settings.get(name) != value
    ]
    if changed:
        raise StateError(
            f"the state belongs to other settings: {'; '.join(changed)}. Continue with the settings it was saved with"
        )
    if was.data != now.data:
        raise StateError(
            f"the state belongs to other data ({was.data}) than this Loader reads ({now.data}): use the same shards "
            "or the same dataset"
        )
