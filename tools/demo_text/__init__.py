"""The text of the demo shards: grammars that write chats, and the mix in which they are drawn."""

from collections.abc import Callable, Iterator

from demo_text import code, reasoning, short, stories, work
from demo_text.chat import Chat
from demo_text.draw import Draw

# How often each kind is drawn: like real chat data, mostly short with a long tail.
KINDS: tuple[tuple[Callable[[Draw], Chat], int], ...] = (
    (short.greeting, 14), (short.note, 8), (short.word, 46), (short.glossary, 22), (short.opposite, 20),
    (short.letters, 24), (short.sums, 40), (short.persona, 20), (short.special_spelling, 4), (short.parts, 12),
    (reasoning.conversion, 24), (reasoning.temperature, 14), (reasoning.shopping, 26), (reasoning.travel, 14),
    (reasoning.long_multiplication, 16), (reasoning.savings, 18), (reasoning.collatz, 8), (reasoning.tutor, 22),
    (reasoning.chinese_problem, 12), (reasoning.german_problem, 12),
    (stories.story, 28), (stories.long_story, 6), (stories.continued, 14), (stories.letter, 20), (stories.summary, 16),
    (stories.foreign_story, 16),
    (work.recipe, 24), (work.table, 22), (work.record, 20), (work.plan, 16), (work.service, 20), (work.log, 14),
    (code.function, 20), (code.query, 16), (code.review, 14), (code.tool_session, 36),
)  # fmt: skip


def chats(count: int) -> Iterator[tuple[str, Chat]]:
    """Keys and chats, the same on every call; no chat comes twice."""
    seen: set[str] = set()
    attempt = 0
    while len(seen) < count:
        draw = Draw(f"demo chat {attempt}")
        attempt += 1
        write = draw.weighted(KINDS)
        chat = write(draw)
        if repr(chat) in seen:
            continue
        key = f"{write.__name__.replace('_', '-')}-{len(seen):06d}"
        seen.add(repr(chat))
        yield key, chat
