"""Checks that the wheel works on its own: built, installed in a new environment, tried outside the checkout.

    python tools/check_wheel.py

Packages are installed in the versions of the current environment, so this needs the package index, or pip's cache of
it, and a minute or two. Every command runs as a new user would run it, on files that are written here. The first
failure ends the check.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHATS = 40

RECIPE = '''"""Chats of these shards, a token a character."""

import odb_stream as odb


def characters(sample):
    text = " ".join(message["content"] for message in sample["messages"])
    return {"input_ids": [1 + ord(letter) % 200 for letter in text]}


def build(shards: str = "out/*.tar") -> odb.Pipeline:
    return odb.Pipeline(odb.Shards(shards), characters)
'''


def told(*words: str | Path, at: Path = ROOT, path: str | None = None) -> str:
    """Run a command and return its standard output. A command that fails ends the check."""
    environment = {"PATH": path or os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "COLUMNS": "120"}
    done = subprocess.run(list(map(str, words)), cwd=at, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def require(holds: bool, words: str) -> None:
    """End the check unless this holds."""
    if not holds:
        sys.exit(f"the wheel is not as it should be: {words}")


def built(folder: Path) -> Path:
    """Build the wheel and check its contents."""
    told(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    strangers = [name for name in names if not name.startswith(("odb_stream/", "odb_stream-"))]
    require(not strangers, f"it also holds {strangers[:3]}")
    require("odb_stream/py.typed" in names, "odb_stream/py.typed is missing")
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "odb_stream").rglob("*.py")}
    require(sources <= set(names), f"{sorted(sources - set(names))[:3]} are missing")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """Install the wheel in a new environment; returns the folder of its programs."""
    # Other versions may fail for reasons of their own, which is not what this checks.
    pinned = told(sys.executable, "-m", "pip", "freeze", "--exclude-editable")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in pinned.splitlines() if "==" in line), encoding="utf-8")
    told(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    told(programs / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    return programs


def write_inputs(at: Path) -> None:
    """A file of chats and a recipe."""
    with open(at / "chats.jsonl", "w", encoding="utf-8") as file:
        for n in range(CHATS):
            texts = {"user": "count " * (1 + n % 7), "assistant": "one " * (2 + n)}
            turns = [{"role": role, "content": text} for role, text in texts.items()]
            file.write(json.dumps({"messages": turns}) + "\n")
    (at / "recipe.py").write_text(RECIPE, encoding="utf-8")


def try_commands(programs: Path, at: Path) -> None:
    """Run each command on these files and check what it prints."""
    # Without the current environment on the path: its programs would hide what the wheel lacks.
    path = f"{programs}:/usr/bin:/bin"

    def odb_stream(*words: str) -> str:
        return told("odb-stream", *words, at=at, path=path)

    def as_json(*words: str) -> Any:
        return json.loads(odb_stream(*words, "--json"))

    where = told("python", "-c", "import odb_stream; print(odb_stream.__file__)", at=at, path=path)
    require(where.startswith(str(programs.parent)), f"it is imported from {where.strip()}")
    for command in ("write", "index", "check", "inspect", "run", "simulate", "state"):
        require(command in odb_stream("--help"), f"--help does not name {command}")
    odb_stream("write", "chats.jsonl", "out", "--samples-per-shard", "16")
    require(len(list((at / "out").glob("*.tar"))) == 3, "write makes other than three shards")
    odb_stream("index", "out/*.tar")
    require(as_json("check", "out/*.tar")["samples"] == CHATS, "check counts other samples")
    require("anchored" in odb_stream("inspect", "recipe.py", "--budget", "512"), "inspect compares no policies")
    require(as_json("run", "recipe.py", "--budget", "512")["emitted"] == CHATS, "run emits other samples")
    told("python", "-c", "import numpy as np; np.save('lengths.npy', np.arange(1, 400))", at=at, path=path)
    policies = as_json("simulate", "--lengths", "lengths.npy", "--world-size", "4", "--budget", "2048")
    require({one["policy"] for one in policies} >= {"anchored", "gmt"}, "simulate compares no policies")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        at = folder / "elsewhere"
        at.mkdir()
        wheel = built(folder)
        write_inputs(at)
        try_commands(installed(wheel, folder), at)
        print(f"{wheel.name}: installed alone, all commands work")


if __name__ == "__main__":
    main()
