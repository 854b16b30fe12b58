"""Per-sample stages, in the order a sample passes them: ChatTemplate (messages to text), Tokenize (text to ids)."""

from odb_stream.stages.chat import ChatTemplate
from odb_stream.stages.tokenize import Tokenize

__all__ = ["ChatTemplate", "Tokenize"]
