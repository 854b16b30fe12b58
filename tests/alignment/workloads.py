"""Seeded lengths on which the tests measure batch quality."""

import numpy as np


def workload(name: str) -> list[int]:
    """Seeded lengths shaped like instruction data with a long tail ("chat"), and short with few very long ("mixed")."""
    rng = np.random.Generator(np.random.PCG64(20260619))
    if name == "chat":
        lengths = rng.lognormal(6.9, 0.5, 20_000)
    else:
        lengths = np.where(rng.random(20_000) < 0.75, rng.normal(180, 60, 20_000), rng.lognormal(8.0, 0.6, 20_000))
    return np.clip(lengths, 16, 16_384).astype(int).tolist()
