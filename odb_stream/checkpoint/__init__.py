"""The saved state of a run: its types, their codec, the checks before a load, and the merge for other world sizes."""

from odb_stream.checkpoint.reshard import merge as merge
