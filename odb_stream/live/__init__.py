"""The live view of a run: what a loader does now, as a table, as plain numbers, in TensorBoard, or in your callback.

In the order in which a figure travels: ``figures`` (differences between looks at the report), ``verdict`` (who waits
for whom), ``table`` and ``scalars`` (where they are shown), ``view`` (when).
"""

from odb_stream.live.view import LiveView

__all__ = ["LiveView"]
