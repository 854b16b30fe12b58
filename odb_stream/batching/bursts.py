"""Bursts: how many steps are decoded together. Computed from what all ranks know, so alike on every rank."""

from odb_stream.batching.groups import BYTES, IMAGES, Integers

BURST_SHARE = 4
"""A burst takes at most this part of ``max_bytes``: one is being decoded, one is begun, the rest waits to be taken."""


def burst_ends(counts: Integers, most_bytes: int) -> tuple[int, ...]:
    """Where to cut the steps of a round, so that no rank decodes more than ``most_bytes``: the end of each burst.

    ``counts`` has shape (steps, ranks, fields). A burst has at least one step. Without images there is nothing to
    decode, and the round is one burst.
    """
    steps = len(counts)
    if not counts[..., IMAGES].any():
        return (steps,) if steps else ()
    ends = []
    start = 0
    held = 0
    for step, largest in enumerate(counts[..., BYTES].max(axis=1).tolist()):
        if step > start and held + largest > most_bytes:
            ends.append(step)
            start, held = step, 0
        held += largest
    return (*ends, steps)
