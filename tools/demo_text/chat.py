"""Small constructors for messages in the sample format."""

from typing import Any

Message = dict[str, Any]
Chat = dict[str, Any]


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def chat(*messages: Message) -> Chat:
    """A sample without tools."""
    return {"messages": list(messages)}


def ask(question: str, answer: str) -> Chat:
    """A sample of one question and one answer."""
    return chat(user(question), assistant(answer))
