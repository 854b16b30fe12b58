"""Runs a page in a scratch folder that looks like the checkout, and says which block failed or told something else."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fences import EXECUTED, ROOT, Fence
from outputs import difference

SECONDS = 600.0
"""After this a page counts as hung; none takes nearly as long."""
COPIED = ("docs", "odb_stream", "pipelines", "shards", "tools")
"""Folders of the checkout that a page finds: copies, so that nothing that it writes reaches the checkout."""
LEFT_OUT = ("PYTHONUNBUFFERED", "COLUMNS", "FORCE_COLOR")
"""Variables under which outputs look otherwise, or come in another order."""
NOTEBOOK = Path(__file__).parent / "page_notebook.py"


def make_scratch(folder: Path, root: Path = ROOT) -> None:
    """Copy what a page may use into a new folder."""
    folder.mkdir()
    for name in COPIED:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*root.glob("*.md"), root / "pyproject.toml", root / "Makefile"):
        shutil.copy(file, folder)


@dataclass(frozen=True)
class Finding:
    """What went wrong with a block: in words, and where it is an output that differs, what came out instead."""

    fence: Fence
    words: str
    came: str | None = None

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
        fences: those of one page.
        folder: where they run.
        prelude: Python that runs before the page, and is put before its programs that have no name.
        not_run: the texts of blocks that are left out, each with the reason.
        stand_ins: what a page says -> what takes its place, such as the address of a server.
        environment: variables beyond those of this process.

    Returns:
        What went wrong: outputs that are not what the page shows, and the block that failed, the last that ran.
    """
    blocks = [
        replace(fence, text=_stood_in(fence.text, stand_ins or {}))
        for fence in fences
        if fence.language in EXECUTED and fence.text not in (not_run or {})
    ]
    if not blocks:
        return []
    came, errors = _run(blocks, folder, prelude, environment or {})
    found = []
    done = {fence.line: str(result["out"]) for fence, result in zip(blocks, came, strict=False) if result["good"]}
    for fence in fences:
        if fence.mark is None or fence.follows is None or fence.follows.line not in done:
            continue
        shown = _stood_in(fence.text, stand_ins or {})
        if text := difference(shown, done[fence.follows.line], fence.mark):
            words = f"the page shows something else than what comes out:\n\n{text}"
            found.append(Finding(fence, words, done[fence.follows.line]))
    if len(done) < len(blocks):
        block = blocks[len(done)]
        out = came[-1]["out"] if len(came) > len(done) else f"the process ended, or {SECONDS:.0f} s went by"
        found.append(Finding(block, f"this block failed:\n\n{block.text}\n{out}\n\n{errors[-4000:]}"))
    return found


def _stood_in(text: str, stand_ins: Mapping[str, str]) -> str:
    for said, meant in stand_ins.items():
        text = text.replace(said, meant)
    return text


def _run(
    blocks: list[Fence], folder: Path, prelude: str, environment: Mapping[str, str]
) -> tuple[list[dict[str, object]], str]:
    """The results of the blocks that ran, and what went to standard error."""
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
            # With a word first: torchrun then ends its ranks, which lead sessions of their own.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    came = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return came, (aside / "errors").read_text(encoding="utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """This process's variables, with the programs of its interpreter first on the path, on the CPU and on loopback."""
    return {
        **{name: value for name, value in os.environ.items() if name not in LEFT_OUT},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",  # several processes share few cores: threads that wait for each other spin
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }
