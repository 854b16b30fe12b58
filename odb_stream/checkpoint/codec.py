"""Saved: where a run stands as plain data, small and fit for JSON; references only, never payloads.

The part that is the same for all steps of a round is made once, in the background; a state costs little then.
"""

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from odb_stream.checkpoint.state import Place, Progress, References, RoundState, Sent
from odb_stream.errors import StateError
from odb_stream.nodes.drops import DropCounts
from odb_stream.nodes.pack import Held, PackSnapshot
from odb_stream.sample import SampleRef, position_from, position_state

_WIDTH = len(SampleRef._fields) + 1
_NONE = -1


class SavedStep(NamedTuple):
    """Where the run stands after a step: the round as plain data, shared by its steps, and what the step changed.

    ``moved_in`` and ``moved_out`` are samples that came from and went to other ranks so far.
    """

    round: dict[str, Any]
    progress: Progress
    moved_in: int = 0
    moved_out: int = 0

    def begin(self) -> Place:
        """The place to go on from."""
        return Place(_round_from(self.round), self.progress)

    def plain(self) -> dict[str, Any]:
        """All of it as plain data."""
        progress = self.progress
        drops: DropCounts = progress.packer
        return {
            "round": dict(self.round),
            "place": progress.place,
            "steps": progress.steps,
            "samples_seen": progress.samples_seen,
            "stand_in": None if progress.stand_in is None else _flat(progress.stand_in),
            "borrowed_from": progress.borrowed_from,
            "lent": [[rank, *_flat(held)] for rank, held in progress.lent],
            "dropped": drops.plain(),
            "moved_in": self.moved_in,
            "moved_out": self.moved_out,
        }


def plain_round(state: RoundState) -> dict[str, Any]:
    """A round's state as plain data: numbers, and text that holds compressed rows of integers."""
    packer: PackSnapshot = state.packer
    groups: list[References | None] = [*state.mine, *(sent.samples for sent in state.sent), *state.surplus]
    held = [*chain.from_iterable(group for group in groups if group is not None), *packer.held]
    return {
        "number": state.round,
        "active": state.active,
        "last": state.last,
        "dry_rounds": state.dry_rounds,
        "images": state.images,
        "steps": len(state.mine),
        "bursts": pack_integers(state.bursts),
        "origins": pack_integers(state.origins),
        "sent": pack_integers(chain.from_iterable((sent.step, sent.destination) for sent in state.sent)),
        "groups": pack_integers(_NONE if group is None else len(group) for group in groups),
        "held": len(packer.held),
        "references": pack_held(held),
        "waits": pack_integers(packer.waits),
        "pass": packer.pass_number,
        "position": position_state(packer.position),
        "source_ended": packer.source_ended,
        "received": packer.received,
        "admitted_in_pass": packer.admitted_in_pass,
        "solo": packer.solo,
        "max_delay": packer.max_delay,
    }


def saved_step(plain: dict[str, Any]) -> SavedStep:
    """What :meth:`SavedStep.plain` wrote. Raises StateError where that is damaged."""
    try:
        stand_in = plain["stand_in"]
        progress = Progress(
            place=plain["place"],
            steps=plain["steps"],
            samples_seen=plain["samples_seen"],
            stand_in=None if stand_in is None else _held(stand_in),
            borrowed_from=plain["borrowed_from"],
            lent=tuple((rank, _held(held)) for rank, *held in plain["lent"]),
            packer=DropCounts.from_plain(plain["dropped"]),
        )
        saved = SavedStep(plain["round"], progress, plain["moved_in"], plain["moved_out"])
        saved.begin()
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, zlib.error, binascii.Error) as error:
        raise StateError(f"the state is damaged ({type(error).__name__}: {error}): load it as it was saved") from error
    return saved


def _round_from(plain: dict[str, Any]) -> RoundState:
    held = iter(unpack_held(plain["references"]))
    groups = [_taken(held, size) for size in unpack_integers(plain["groups"])]
    mine, others = tuple(groups[: plain["steps"]]), iter([group or () for group in groups[plain["steps"] :]])
    sent = np.array(unpack_integers(plain["sent"]), dtype=np.int64).reshape(-1, 2).tolist()
    return RoundState(
        round=plain["number"],
        active=plain["active"],
        last=plain["last"],
        dry_rounds=plain["dry_rounds"],
        images=plain["images"],
        bursts=tuple(unpack_integers(plain["bursts"])),
        mine=mine,
        origins=tuple(unpack_integers(plain["origins"])),
        sent=tuple(Sent(step, destination, next(others)) for step, destination in sent),
        surplus=tuple(others),
        packer=PackSnapshot(
            pass_number=plain["pass"],
            position=position_from(plain["position"]),
            held=tuple(held),
            waits=tuple(unpack_integers(plain["waits"])),
            source_ended=plain["source_ended"],
            received=plain["received"],
            admitted_in_pass=plain["admitted_in_pass"],
            solo=plain["solo"],
            max_delay=plain["max_delay"],
        ),
    )


def _taken(held: Iterator[Held], size: int) -> References | None:
    return None if size == _NONE else tuple(next(held) for _ in range(size))


def pack_held(held: Sequence[Held]) -> str:
    """References with their epochs as text."""
    return pack_rows([(*ref, epoch) for ref, epoch in held])


def unpack_held(text: str) -> list[Held]:
    """The references and epochs that :func:`pack_held` wrote."""
    return [(SampleRef(*ref), epoch) for *ref, epoch in unpack_rows(text, _WIDTH)]


def pack_rows(rows: Sequence[tuple[int, ...]]) -> str:
    """Rows of integers, all of one width, as text: the differences of neighbours, compressed."""
    if not rows:
        return pack_integers(())
    table = np.array(rows, dtype=np.int64)
    return _text(np.diff(table, axis=0, prepend=np.zeros((1, table.shape[1]), dtype=np.int64)))


def unpack_rows(text: str, width: int) -> list[list[int]]:
    """The rows that :func:`pack_rows` wrote."""
    rows: list[list[int]] = np.cumsum(_integers(text).reshape(-1, width), axis=0).tolist()
    return rows


def pack_integers(values: Any) -> str:
    """Integers as text, compressed."""
    return _text(np.fromiter(values, dtype=np.int64))


def unpack_integers(text: str) -> list[int]:
    """The integers that :func:`pack_integers` wrote."""
    integers: list[int] = _integers(text).tolist()
    return integers


def _text(values: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).astype("<i8").tobytes(), 1)).decode()


def _integers(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype="<i8").astype(np.int64)


def _flat(held: Held) -> list[int]:
    return [*held[0], held[1]]


def _held(flat: Sequence[int]) -> Held:
    *ref, epoch = flat
    return SampleRef(*ref), epoch
