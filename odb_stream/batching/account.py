"""What a rank tells the others beside its groups: what it read and dropped, and its largest delay. A few bytes."""

import json
from collections import Counter
from typing import NamedTuple

import numpy as np

from odb_stream.batching.groups import Integers

ACCOUNT_BYTES = 512
REST = "other reasons"


class Account(NamedTuple):
    """One rank's running account, or the sum over ranks (the maximum for ``max_delay``).

    ``damaged`` of the dropped samples are broken data; ``received`` counts the records that arrived. These two are
    exchanged apart, as plain integers, and :func:`encode` leaves them out.
    """

    dropped: dict[str, int]
    solo: int = 0
    max_delay: int = 0
    damaged: int = 0
    received: int = 0


def encode(account: Account) -> Integers:
    """The account as a fixed number of integers; the rarest reasons are lumped together where all do not fit."""
    reasons = sorted(account.dropped.items(), key=lambda item: (-item[1], item[0]))
    kept = len(reasons)
    while len(text := _text(_lumped(reasons, kept), account)) > ACCOUNT_BYTES:
        kept -= 1
    return np.frombuffer(text.ljust(ACCOUNT_BYTES, b"\0"), dtype=np.int64)


def _lumped(reasons: list[tuple[str, int]], kept: int) -> dict[str, int]:
    rest = sum(number for _, number in reasons[kept:])
    return dict(reasons[:kept]) | ({REST: rest} if rest else {})


def total(rows: Integers) -> Account:
    """The sum of the accounts of all ranks, from their integers of shape (ranks, ACCOUNT_BYTES / 8)."""
    dropped: Counter[str] = Counter()
    solo = max_delay = 0
    for row in rows:
        fields, own_solo, own_delay = json.loads(row.tobytes().rstrip(b"\0"))
        dropped.update(fields)
        solo += own_solo
        max_delay = max(max_delay, own_delay)
    return Account(dict(sorted(dropped.items())), solo, max_delay)


def _text(dropped: dict[str, int], account: Account) -> bytes:
    return json.dumps([dropped, account.solo, account.max_delay], separators=(",", ":"), ensure_ascii=False).encode()
