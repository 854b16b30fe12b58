"""The live view of a run: what a loader is doing, as a table, as plain numbers, in TensorBoard, or in your callback.

In the order of the data: ``figures`` computes differences between looks at the report, ``verdict`` says who waits for
whom, ``table`` and ``scalars`` show them, and ``view`` decides when.
"""

from odb_stream.live.view import LiveView

__all__ = ["LiveView"]
