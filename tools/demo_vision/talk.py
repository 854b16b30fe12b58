"""A chat while it is written: its messages, and its pictures as the members of a key."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from demo_text.draw import Draw
from PIL import Image

from demo_vision.files import encode


class Seen(NamedTuple):
    """A picture that stands in a message; ``smooth`` ones have many colours."""

    picture: Image.Image
    smooth: bool = False


class Again(NamedTuple):
    """The picture of that number, shown once more."""

    number: int


@dataclass
class Talk:
    """Messages and files, written turn by turn. In half of the chats parts name their files, else their order tells."""

    draw: Draw
    messages: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named = self.draw.chance(0.5)

    def system(self, text: str) -> "Talk":
        """A system message."""
        self.messages.append({"role": "system", "content": text})
        return self

    def user(self, *parts: str | Seen | Again) -> "Talk":
        """A question; a lone text is written as a string."""
        texts = [part for part in parts if isinstance(part, str)]
        content = texts[0] if len(parts) == len(texts) == 1 else [self._part(part) for part in parts]
        self.messages.append({"role": "user", "content": content})
        return self

    def assistant(self, text: str) -> "Talk":
        """An answer."""
        self.messages.append({"role": "assistant", "content": text})
        return self

    def ask(self, question: str, answer: str, *seen: Seen) -> "Talk":
        """A question about pictures, which come before it or after it, and the answer."""
        parts = (*seen, question) if self.draw.chance(0.7) else (question, *seen)
        return self.user(*parts).assistant(answer)

    @property
    def chat(self) -> dict[str, Any]:
        """The content of ``KEY.json``."""
        return {"messages": self.messages}

    def _part(self, part: str | Seen | Again) -> dict[str, str]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, Again):
            return {"type": "image", "image": list(self.files)[part.number]}
        extension, data = encode(self.draw, part.picture, smooth=part.smooth)
        name = f"{len(self.files)}.{extension}"
        self.files[name] = data
        return {"type": "image", "image": name} if self.named else {"type": "image"}
