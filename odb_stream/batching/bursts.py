"""Bursts: how many steps are decoded together. Computed from what all ranks know, so alike on every rank."""

from odb_stream.batching.groups import BYTES, IMAGES, Integers

BURST_SHARE = 4
"""A burst takes at most this part of ``max_bytes``: one is being decoded, one is begun, the rest waits to be taken."""


def burst_spans(counts: Integers, most_bytes: int) -> list[slice]:
    """The steps of a round, of shape (steps, ranks, fields), cut so that no rank decodes more than ``most_bytes``.

    A burst has at least one step. Without images there is nothing to decode, and the round is one burst.
    """
    steps = len(counts)
    if not counts[..., IMAGES].any():
        return [slice(0, steps)] if steps else []
    spans = []
    start = 0
    held = 0
    for step, largest in enumerate(counts[..., BYTES].max(axis=1).tolist()):
        if step > start and held + largest > most_bytes:
            spans.append(slice(start, step))
            start, held = step, 0
        held += largest
    return [*spans, slice(start, steps)]
