"""Heads and causes: the integers with which every gather of heads begins, and what ranks say when a run must stop."""

import numpy as np

from odb_stream.batching.account import Account, encode
from odb_stream.batching.groups import Integers
from odb_stream.errors import PeerError

EXHAUSTED, FAILED, CLOSING = 1, 2, 4
"""Bits of the status word that starts every head."""

HEAD_FIELDS = 4
"""Status, number of groups, epoch and round; the account follows."""

MESSAGE_BYTES = 2048
"""Room for the cause of a failure, in UTF-8."""


def pack_head(status: int, planned: int, epoch: int, number: int, account: Account) -> Integers:
    """What a rank says of itself at the start of a round."""
    return np.concatenate([np.array([status, planned, epoch, number], dtype=np.int64), encode(account)])


def check_in_step(heads: Integers, rank: int, epoch: int, number: int) -> None:
    """Raise a PeerError, by rank ``rank``, if another rank is in another round or epoch."""
    for other, (their_epoch, their_number) in enumerate(heads[:, 2:4].tolist()):
        if (their_epoch, their_number) != (epoch, number):
            raise PeerError(
                f"rank {other} is in round {their_number} of epoch {their_epoch}, but rank {rank} in round {number} of "
                f"epoch {epoch}: every rank must run the same epochs, one `for` loop each"
            )


def pack_cause(failure: Exception | None) -> Integers:
    """The cause of a rank's failure as a fixed number of integers; zeros without one."""
    message = np.zeros(MESSAGE_BYTES, dtype=np.uint8)
    if failure is not None:
        text = f"{type(failure).__name__}: {failure}".encode()[:MESSAGE_BYTES]
        message[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return message.view(np.int64)


def stop_error(status: Integers, messages: Integers, place: str) -> PeerError:
    """The error of all ranks that did not leave themselves: the lowest rank that failed, else the lowest that left."""
    failed = np.flatnonzero(status & FAILED).tolist()
    if failed:
        cause = messages[failed[0]].tobytes().rstrip(b"\0").decode(errors="replace")
        return PeerError(f"rank {failed[0]} failed ({place}): {cause}")
    left = np.flatnonzero(status & CLOSING).tolist()
    return PeerError(
        f"rank {left[0]} left its loop early ({place}): all ranks must leave at the same step, and a rank that stops "
        "because of an error should raise it"
    )
