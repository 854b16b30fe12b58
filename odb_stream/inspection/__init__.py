"""What the samples of a pipeline are like, and which settings suit them: measured, simulated, and rendered.

In the order of the data: ``collect`` prepares some records; ``figures``, ``times``, ``policies`` and ``memory`` compute
what ``report`` puts together; ``tables``, ``pictures`` and ``page`` show it.
"""

from odb_stream.inspection.memory import Accelerator, ModelSize, parse_bytes
from odb_stream.inspection.report import Inspection, inspect

__all__ = ["Accelerator", "Inspection", "ModelSize", "inspect", "parse_bytes"]
