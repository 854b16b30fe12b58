"""What TRL's trainers ask for at their start beside a loader: a dataset, which is never read."""

import sys
from typing import Any


def stand_in(trainer: type) -> Any:
    """One row that is ready to use, for a trainer of TRL that takes no None; else None. TRL is not imported here."""
    trl = sys.modules.get("trl")
    if trl is None or not issubclass(trainer, trl.SFTTrainer):
        return None
    # TRL has imported it; the Trainer alone does not need it.
    return sys.modules["datasets"].Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
