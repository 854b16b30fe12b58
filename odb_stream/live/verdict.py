"""Who waits for whom, in words: the trainer for data, and then for which stage, or data for the trainer."""

from collections.abc import Mapping
from typing import Any

WAITING = 0.05
"""From this share of the time on, the trainer counts as waiting."""

SUPPLY = {
    "workers": "for the workers, which run the stages",
    "read": "for records to be read",
    "peers": "for other ranks",
}
"""What the loader's own thread waits for before a batch can be made."""

PACKING = "packing"
"""The trainer waits, and the loader's thread does not: it forms, aligns and collates batches all the time."""


def verdict_of(recent: Mapping[str, Any]) -> tuple[str | None, str]:
    """What the trainer waits for (None where it does not), and the verdict in one line.

    The cause is the wait of the loader's thread that is longest, or what the thread does itself, where its waits leave
    most of the trainer's unexplained.
    """
    if not recent["steps"]:
        return None, "no step was made yet" if not recent["seconds"] else "no step was made of late"
    share: Mapping[str, float] = recent["wait_share"]
    waited, lately = share.get("trainer", 0.0), f"of the last {recent['seconds']:.1f} s"
    if waited < WAITING:
        return None, f"data wait for the trainer: it waited {waited:.1%} {lately}"
    supply = {stage: share.get(stage, 0.0) for stage in SUPPLY}
    supply[PACKING] = waited - sum(supply.values())
    cause = max(supply, key=lambda stage: supply[stage])
    words = SUPPLY.get(cause, "for packing and collating")
    return cause, f"the trainer waits for data: {waited:.1%} {lately}, mostly {words}"
