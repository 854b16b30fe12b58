"""Runs a page in a scratch folder that looks like the checkout, and reports which block failed or printed otherwise."""

import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fences import EXECUTED, ROOT, Fence, Mark

SECONDS = 600.0
"""A page that takes longer counts as hung; none takes nearly as long."""
COPIED = ("docs", "odb_stream", "pipelines", "shards", "tools")
"""Folders of the checkout that a page finds. They are copies: nothing that a page writes reaches the checkout."""
NOTEBOOK = Path(__file__).parent / "page_notebook.py"

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
# A table is as wide as its numbers, so the characters that fill its lines vary with them.
FILLING = re.compile(r"[ ─━]+")
ANYTHING = "..."
"""A line of a page's output that stands for any number of lines."""


def make_scratch(folder: Path, root: Path = ROOT) -> None:
    """Copy what a page may use into a new folder."""
    folder.mkdir()
    for name in COPIED:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*root.glob("*.md"), root / "pyproject.toml", root / "Makefile"):
        shutil.copy(file, folder)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a block, in words; for an output that differs, also what was printed."""

    fence: Fence
    words: str
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.fence.place}: {self.words}"


def run_page(
    fences: list[Fence],
    folder: Path,
    *,
    prelude: str = "",
    not_run: Mapping[str, str] | None = None,
    stand_ins: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Run the blocks of a page in order.

    Args:
        fences: the blocks of one page.
        folder: where they run.
        prelude: Python that runs before the page, and is put in front of each program of its own that has no name.
        not_run: the texts of blocks that do not run, each with the reason.
        stand_ins: what a page says -> what replaces it, such as the address of a server.
        environment: variables added to those of this process.

    Returns:
        What is wrong: outputs that differ from the page, and the block that failed, which is the last that ran.
    """
    # The outputs get the replacements too: a page may print the address that it uses.
    replaced = [replace(fence, text=_replaced(fence.text, stand_ins or {})) for fence in fences]
    blocks = [
        new
        for old, new in zip(fences, replaced, strict=True)
        if old.language in EXECUTED and old.text not in (not_run or {})
    ]
    if not blocks:
        return []
    results, errors = _run(blocks, folder, prelude, environment or {})
    found = []
    done = {block.line: str(result["out"]) for block, result in zip(blocks, results, strict=False) if result["good"]}
    for old, new in zip(fences, replaced, strict=True):
        if old.mark is None or old.follows is None or old.follows.line not in done:
            continue
        printed = done[old.follows.line]
        if text := difference(new.text, printed, old.mark):
            found.append(Finding(old, f"the program prints something else than the page shows:\n\n{text}", printed))
    if len(done) < len(blocks):
        block = blocks[len(done)]
        reason = results[-1]["out"] if len(results) > len(done) else f"the process ended, or took over {SECONDS:.0f} s"
        found.append(Finding(block, f"this block failed:\n\n{block.text}\n{reason}\n\n{errors[-4000:]}"))
    return found


def _replaced(text: str, stand_ins: Mapping[str, str]) -> str:
    for said, meant in stand_ins.items():
        text = text.replace(said, meant)
    return text


def _run(
    blocks: list[Fence], folder: Path, prelude: str, environment: Mapping[str, str]
) -> tuple[list[dict[str, object]], str]:
    """The results of the blocks that ran, and the text of standard error."""
    # Beside the folder, not in it: a page may list its folder.
    aside = folder.with_name(f"{folder.name}-aside")
    aside.mkdir()
    parts = [{"page": b.page, "line": b.line, "language": b.language, "text": b.text} for b in blocks]
    (aside / "plan.json").write_text(json.dumps({"prelude": prelude, "blocks": parts}), encoding="utf-8")
    results = aside / "results.jsonl"
    results.touch()
    with (aside / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(NOTEBOOK), str(aside / "plan.json"), str(results)],
            cwd=folder, env=_environment() | environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
        )  # fmt: skip
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            # SIGTERM first: torchrun then ends its ranks, which SIGKILL to this group would not reach,
            # because each leads a session of its own.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return found, (aside / "errors").read_text(encoding="utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """This process's variables, with the programs of its interpreter first on the path, on the CPU and on loopback."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",  # several processes share few cores: threads that wait for each other spin
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def difference(shown: str, printed: str, mark: Mark) -> str:
    """A diff of what the page shows and what a program printed; empty where they agree."""
    left, right = _compared(shown, mark), _compared(printed, mark)
    if _agree(left, right):
        return ""
    return "\n".join(difflib.unified_diff(left, right, "the page", "the program", lineterm=""))


def _compared(text: str, mark: Mark) -> list[str]:
    if mark.but is not None:
        text = re.sub(mark.but, "(left out)", text, flags=re.M)
    if not mark.numbers:
        text = FILLING.sub(" ", NUMBER.sub("0", text))
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _agree(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == ANYTHING:
        return any(_agree(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and _agree(shown[1:], printed[1:])
