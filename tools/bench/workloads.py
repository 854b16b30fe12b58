"""Lengths to measure on: seeded arrays of our own, and the arrays of a folder, where there is one."""

from pathlib import Path

import numpy as np

ARRAYS = Path(__file__).resolve().parents[3] / "shared" / "data" / "lengths"
"""Where arrays of real and paper-like lengths may lie, beside the checkout; ``README.md`` there says what they are."""

SAMPLES = 20_000
SEEDED = ("chat", "mixed", "short", "even")


def workload(name: str, samples: int = SAMPLES) -> list[int]:
    """Seeded lengths in tokens, 16 to 16,384.

    ``chat``: instruction data with a long tail. ``mixed``: three quarters short, the rest very long. ``short``: single
    turns of about 170 tokens. ``even``: any length from 16 to 8,192 alike.
    """
    rng = np.random.Generator(np.random.PCG64(20260619))
    if name == "chat":
        lengths = rng.lognormal(6.9, 0.5, samples)
    elif name == "mixed":
        lengths = np.where(rng.random(samples) < 0.75, rng.normal(180, 60, samples), rng.lognormal(8.0, 0.6, samples))
    elif name == "short":
        lengths = rng.lognormal(5.0, 0.55, samples)
    else:
        lengths = rng.uniform(16, 8_192, samples)
    return np.clip(lengths, 16, 16_384).astype(int).tolist()


def arrays(folder: Path) -> dict[str, list[int]]:
    """The arrays of a folder by name; none where it does not exist."""
    return {path.stem: np.load(path).tolist() for path in sorted(folder.glob("*.npy"))}
