"""Whether the trainer waits for data, and for which stage of the loader, or data wait for the trainer."""

from collections.abc import Mapping
from typing import Any

WAITING = 0.05
"""The trainer counts as waiting from this share of the time."""

TRAINER = "trainer"
"""The wait of the training loop for a batch; all other waits are those of the loader's own thread."""

SUPPLY = {
    "workers": "for the workers, which run the stages",
    "read": "for records to be read",
    "peers": "for other ranks",
}
"""What the loader's own thread waits for before it can form a batch."""

PACKING = "packing"
"""The trainer waits, but the loader's thread does not: it is busy forming, aligning and collating batches."""


def verdict_of(recent: Mapping[str, Any]) -> tuple[str | None, str]:
    """What the trainer waits for (None if it does not wait), and the verdict in one line.

    The cause is the longest wait of the loader's thread, or the thread's own work, if its waits do not explain most of
    the trainer's.
    """
    if not recent["steps"]:
        return None, "no step was made yet" if not recent["seconds"] else "no step was made of late"
    share: Mapping[str, float] = recent["wait_share"]
    waited, lately = share.get(TRAINER, 0.0), f"of the last {recent['seconds']:.1f} s"
    if waited < WAITING:
        return None, f"data wait for the trainer: it waited {waited:.1%} {lately}"
    supply = {stage: share.get(stage, 0.0) for stage in SUPPLY}
    # What remains of the trainer's wait: below 0 if the thread also waited while the trainer was busy.
    supply[PACKING] = waited - sum(supply.values())
    cause = max(supply, key=lambda stage: supply[stage])
    words = SUPPLY.get(cause, "for packing and collating")
    return cause, f"the trainer waits for data: {waited:.1%} {lately}, mostly {words}"
