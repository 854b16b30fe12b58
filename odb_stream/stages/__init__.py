"""What happens to one sample: the stages, in the order that a sample passes them.

- MeasureImages (``images``): image files to measured images.
- RandomResize, RandomCrop, RandomFlip, ColorJitter and your own transforms (``images``): planned now, applied later.
- ChatTemplate (``chat``): messages to text, with the spans to learn from.
- Tokenize (``tokenize``): text to ids and labels.
- ExpandVisualTokens (``visual``, with models' measures in ``families`` and positions in ``rope``): one placeholder per
  image to one token per feature.

Plain text needs Tokenize alone, chats without images ChatTemplate and Tokenize. What the stages read from a processor
is in ``processor``.
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
