"""Per-sample stages, in the order a sample passes them.

For chats: MeasureImages (files to measured images), image transforms, ChatTemplate (messages to text), Tokenize (text
to ids), ExpandVisualTokens (one placeholder per image to one token per feature). Plain text needs Tokenize alone, chats
without images ChatTemplate and Tokenize.
"""

from odb_stream.deprecated import renamed
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
from odb_stream.stages.images.measure import MeasureImages
from odb_stream.stages.tokenize import Tokenize
from odb_stream.stages.visual import ExpandVisualTokens

__all__ = [
    "BadImage",
    "ChatTemplate",
    "ColorJitter",
    "ExpandVisualTokens",
    "FixedTokens",
    "ImageTransform",
    "MeasureImages",
    "PixelTransform",
    "PlannedImage",
    "RandomCrop",
    "RandomFlip",
    "RandomResize",
    "Tokenize",
    "VisualFamily",
]

__getattr__ = renamed(__name__, {"DecodeImages": "MeasureImages"})
