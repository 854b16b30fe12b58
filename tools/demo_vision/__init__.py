"""The vision demo shards: chats about drawn pictures, whose answers follow from what was drawn, and their mix."""

from collections.abc import Callable, Iterator

from demo_text.draw import Draw

from demo_vision import longer, single
from demo_vision.talk import Talk

# How often each kind is drawn: mostly one small picture, with a long tail of large ones and of many.
KINDS: tuple[tuple[Callable[[Draw], Talk], int], ...] = (
    (single.one_shape, 40), (single.colour, 24), (single.count, 24), (single.place, 22), (single.word, 24),
    (single.calculation, 16), (single.slope, 16), (single.chart, 20), (single.chequers, 12), (single.strip, 16),
    (longer.compare, 20), (longer.series, 18), (longer.odd_one, 10), (longer.inventory, 18), (longer.dialogue, 22),
    (longer.look_again, 8), (longer.mixing, 20), (longer.corners, 8), (longer.lesson, 18), (longer.spelled, 6),
)  # fmt: skip


def talks(count: int) -> Iterator[tuple[str, Talk]]:
    """Keys and chats with their files, the same on every call with the same Pillow; no chat comes twice."""
    seen: set[str] = set()
    attempt = 0
    while len(seen) < count:
        draw = Draw(f"vision chat {attempt}")
        attempt += 1
        write = draw.weighted(KINDS)
        talk = write(draw)
        content = repr((talk.messages, talk.files))
        if content in seen:
            continue
        key = f"{write.__name__.replace('_', '-')}-{len(seen):06d}"
        seen.add(content)
        yield key, talk
