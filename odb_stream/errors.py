"""Every error that odb_stream raises, in one hierarchy.

::

    OdbStreamError
    ├── ConfigError        a setting, a recipe or a template that cannot work; raised before the first batch
    ├── ShardError         a shard that is missing, damaged or not in the sample format
    ├── StageError         a stage raised, or returned what is neither a sample nor a Drop
    ├── OversizeError      one sample is larger than the whole budget
    ├── WorkerError        a worker process ended or could not start
    ├── StateError         a saved state that does not fit this loader
    └── PeerError          another rank failed or stopped early
        └── AlignmentTimeout   another rank did not respond within the timeout

Every message says what value, where (shard, key, offset, rank, step) and the way out. All are picklable: they travel
from worker processes and between ranks.
"""


class OdbStreamError(Exception):
    """Base of all errors of this package."""


class ConfigError(OdbStreamError):
    """A setting, recipe or template that cannot work. Raised when it is given, before data flows."""


class ShardError(OdbStreamError):
    """A shard that is missing, damaged or not in the sample format; names shard, key and offset where known."""


class StageError(OdbStreamError):
    """A stage raised or returned the wrong thing; names the stage, the sample and the cause."""


class OversizeError(OdbStreamError):
    """One sample exceeds the budget by itself, and ``oversize="error"`` is set."""


class WorkerError(OdbStreamError):
    """A worker process was killed, crashed or could not start; names the exit."""


class StateError(OdbStreamError):
    """A saved state does not fit this loader; names what differs."""


class PeerError(OdbStreamError):
    """Another rank failed or stopped early; names the rank and the cause."""


class AlignmentTimeout(PeerError):
    """Another rank gave no sign of life within the timeout; names the rank and the age of its last sign."""
