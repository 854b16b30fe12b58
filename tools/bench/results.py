"""Results of benchmarks: one JSON file each, with the machine, the versions and the date; and tables for the page."""

import datetime
import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PACKAGES = (
    "torch", "torchdata", "transformers", "webdataset", "lhotse", "online-dynamic-batching", "tokenizers", "numpy",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures were measured on, without any name of the host or its owner."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "python": platform.python_version(),
    }


def processor() -> str:
    """The model of the processor, or its architecture if the system does not name the model."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """The versions of the packages above that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def save(name: str, figures: Any, command: str, folder: Path = FOLDER) -> Path:
    """Write ``NAME.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "benchmark": name,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "figures": figures,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def load(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return result


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers with three decimals below 100, with separators above."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A value as a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
