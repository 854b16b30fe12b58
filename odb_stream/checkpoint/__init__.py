"""Where a run stands: one typed state, one codec, whether it fits a loader, and another number of ranks."""

from odb_stream.checkpoint.reshard import merge as merge
