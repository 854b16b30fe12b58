"""What a pipeline's samples are like, measured: lengths, drops, times, images, and the settings that suit them."""

from odb_stream.inspection.memory import Accelerator, parse_bytes
from odb_stream.inspection.model_size import ModelSize
from odb_stream.inspection.report import Inspection, inspect

__all__ = ["Accelerator", "Inspection", "ModelSize", "inspect", "parse_bytes"]
