"""The layers of the package: imports only go down, the pure parts stay pure, and there is no cycle."""

import re
import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest
from import_graph import PACKAGE, ROOT, imports, sources

# Each file and folder directly inside the package -> its layer. A new one must be added here.
LAYERS = {
    "errors": 0, "sample": 0, "seeds": 0, "config": 0, "deprecated": 0,
    "checkpoint": 1,
    "batching": 2,
    "storage": 3,
    "shards": 4,
    "sources": 5,
    "stages": 6,
    "prepare": 7,
    "workers": 8,
    "ranks": 9,
    "nodes": 10,
    "": 11, "loader": 11,
    "inspection": 12, "live": 12, "adapters": 12, "resume": 12, "tiny_model": 12,
    "cli": 13,
}  # fmt: skip

# batching is integers in, integers out, and plans with the types of states. Both may import these, and nothing else
# from outside the package.
PURE = {
    "abc", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq", "itertools", "json",
    "math", "operator", "typing", "numpy", "numpy.typing",
}  # fmt: skip

# Worker processes import these; torch and transformers would cost each of them seconds and hundreds of megabytes.
LIGHT = (
    "errors", "sample", "seeds", "config", "deprecated", "checkpoint", "batching", "storage", "shards", "sources",
    "stages", "prepare", "workers",
)  # fmt: skip
HEAVY = {"torch", "torchdata", "transformers", "accelerate", "lightning"}


def place(module: str) -> str:
    """The part of the package that a module belongs to: a key of ``LAYERS``."""
    return module.split(".")[1] if "." in module else ""


def belongs(module: str, parts: tuple[str, ...]) -> bool:
    """Whether a module is one of these parts of the package, or inside one."""
    return any(f"{module}.".startswith(f"{PACKAGE}.{part}.") for part in parts)


def violations(modules: Mapping[str, str]) -> list[str]:
    """Every breach of the rules in words; none for a sound package."""
    found = [f"{module}: {place(module)!r} has no layer" for module in modules if place(module) not in LAYERS]
    if found:
        return found
    edges: dict[str, set[str]] = {}
    for module in modules:
        for imported in imports(module, modules):
            here, target = f"{module}:{imported.line}", imported.target
            if target in modules:
                edges.setdefault(module, set()).add(target)
                if LAYERS[place(target)] > LAYERS[place(module)]:
                    found.append(f"{here} imports {target}, of a higher layer")
            elif target.split(".")[0] == PACKAGE:
                found.append(f"{here} imports {target}, which does not exist")
            else:
                if belongs(module, ("batching", "checkpoint.state")) and target not in PURE:
                    found.append(f"{here} imports {target}, but that module is pure")
                if imported.at_module_level and belongs(module, LIGHT) and target.split(".")[0] in HEAVY:
                    found.append(f"{here} imports {target} at module level, in every worker")
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append("cycle: " + " -> ".join(error.args[1][::-1]))  # graphlib begins at the end
    return found


def test_the_package_keeps_its_layers() -> None:
    assert violations(sources()) == []


def test_the_page_for_contributors_lists_the_layers() -> None:
    rows = re.findall(r"^\| (\d+) \| (`[^|]+`) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M)
    listed = {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)/?`", names)}
    # The package's own file, and files that only forward or serve examples, are not worth a line there.
    assert listed == {name: layer for name, layer in LAYERS.items() if name not in ("", "resume", "tiny_model")}


BAD = {
    "a lower layer imports a higher one": ("odb_stream.stages.bad", "import odb_stream.nodes.pack", "higher layer"),
    "the same with from": ("odb_stream.errors", "from odb_stream.batching import window", "higher layer"),
    "the same, relative": ("odb_stream.batching.bad", "from ..sources.source import Reading", "higher layer"),
    "the same, inside a function": ("odb_stream.ranks.bad", "def f():\n    import odb_stream.loader", "higher layer"),
    "the package's own names from inside": ("odb_stream.nodes.bad", "from odb_stream import Loader", "higher layer"),
    "threads in batching": ("odb_stream.batching.bad", "import threading", "is pure"),
    "a clock in batching": ("odb_stream.batching.bad", "def f():\n    from time import monotonic", "is pure"),
    "files in batching": ("odb_stream.batching.bad", "from pathlib import Path", "is pure"),
    "threads in a state": ("odb_stream.checkpoint.state", "import threading", "is pure"),
    "torch in a stage": ("odb_stream.stages.bad", "import torch", "at module level"),
    "torch in a try": ("odb_stream.stages.bad", "try:\n    import torch.nn\nfinally:\n    pass", "at module level"),
    "transformers in shards": ("odb_stream.shards.bad", "from transformers import AutoTokenizer", "at module level"),
    "torch in the workers": ("odb_stream.workers.pool", "class A:\n    import torch", "at module level"),
    "a cycle": ("odb_stream.seeds", "def f():\n    from odb_stream import sample", "cycle: "),
    "a folder without a layer": ("odb_stream.helpers.bad", "", "no layer"),
    "a module that is not there": ("odb_stream.stages.bad", "from odb_stream.nowhere import x", "does not exist"),
}  # fmt: skip

SOUND = {
    "odb_stream": "",
    "odb_stream.errors": "",
    "odb_stream.seeds": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from odb_stream.loader import Loader",
    "odb_stream.sample": "from . import seeds",
    "odb_stream.batching": "",
    "odb_stream.batching.window": "import numpy as np\nfrom collections import deque\nfrom .. import sample",
    "odb_stream.stages": "def build():\n    import transformers",
    "odb_stream.sources": "",
    "odb_stream.sources.source": "import os",
    "odb_stream.ranks.transport": "import torch.distributed",
    "odb_stream.nodes": "",
    "odb_stream.nodes.pack": "import torch",
    "odb_stream.loader": "from odb_stream.nodes.pack import Pack",
}


def test_a_sound_package_passes() -> None:
    assert violations(SOUND) == []


@pytest.mark.parametrize(("module", "source", "message"), BAD.values(), ids=BAD)
def test_a_violation_is_caught(module: str, source: str, message: str) -> None:
    found = violations({**SOUND, module: source})
    assert len(found) == 1
    assert message in found[0]


def test_what_workers_import_loads_neither_torch_nor_transformers() -> None:
    """The same rule once more, through everything that the modules import in turn."""
    light = [name for name in sources() if name == PACKAGE or belongs(name, LIGHT)]
    script = (
        f"import sys, {', '.join(light)}\n"
        "print(sorted({'torch', 'torchdata', 'transformers', 'accelerate', 'lightning'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
