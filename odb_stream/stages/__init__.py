"""Per-sample stages, in the order a sample passes them.

For chats: DecodeImages (files to measured images), image transforms, ChatTemplate (messages to text), Tokenize (text to
ids), ExpandVisualTokens (one placeholder an image to one token a feature). Text alone needs only Tokenize, or
ChatTemplate and Tokenize.
"""

from odb_stream.stages.chat.template import ChatTemplate
from odb_stream.stages.families import FixedTokens, VisualFamily
from odb_stream.stages.images.augment import (
    ColorJitter,
    ImageTransform,
    PixelTransform,
    RandomCrop,
    RandomFlip,
    RandomResize,
)
from odb_stream.stages.images.files import BadImage, PlannedImage
from odb_stream.stages.images.measure import DecodeImages
from odb_stream.stages.tokenize import Tokenize
from odb_stream.stages.visual import ExpandVisualTokens

__all__ = [
    "BadImage",
    "ChatTemplate",
    "ColorJitter",
    "DecodeImages",
    "ExpandVisualTokens",
    "FixedTokens",
    "ImageTransform",
    "PixelTransform",
    "PlannedImage",
    "RandomCrop",
    "RandomFlip",
    "RandomResize",
    "Tokenize",
    "VisualFamily",
]
