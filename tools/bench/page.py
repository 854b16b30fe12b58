"""Writes the page of benchmarks, docs/benchmarks.md, and the table of the README from the JSON files alone."""

import re
from pathlib import Path
from typing import Any

import curves
import gpu
import loading
import pictures
import quality
import scaling
import training
from results import FOLDER, load, table
from workloads import SAMPLES

PAGE = FOLDER.parent / "benchmarks.md"
PICTURES = FOLDER.parent / "pictures"
README = FOLDER.parents[1] / "README.md"

HEAD = """# Benchmarks
This page compares odb_stream with other systems and shows how costs grow, with the command behind each table.

`make bench` measures everything below and rewrites this page; the numbers are stored as JSON in `docs/benchmarks/`.
Ratios come from one run on one machine, in alternating rounds. Times differ on another machine, and ratios of times may
differ too; the batch quality depends only on the lengths and does not. `fixed` are batches of a fixed number of
samples, `gmt` and `bmt` the offline token-budget oracles of the paper that this project starts from (global and
bucketed max-token, [arXiv 2606.19989](https://arxiv.org/abs/2606.19989)), `paper-window` its published policy, and
`published` its published package, `online-dynamic-batching` 0.1.2. The critical ratio is the sum over steps of the
slowest rank's tokens, padding included, over the real tokens of one rank on average: it determines the time of
synchronous steps.
"""

SECTIONS = {
    "quality": ("Batch quality", quality, """
Every policy runs on the same lengths. `anchored` is the policy of a `Loader` in the padded layout. The arrays of 20,000
lengths are seeded; those that end in `_like` are shaped like the paper's four workloads, and `alpaca`, `toolcall` and
`real_chat` are token counts of real chats. An epoch of a thousand samples or fewer has only two to six steps with 8
ranks, so its last step dominates.

![The critical ratio of five policies on the long arrays, 8 ranks](pictures/quality.svg)"""),
    "loading": ("Loader throughput", loading, ""),
    "training": ("Training", training, """
The learning rate of a step is the base rate times the square root of its tokens over those of a fixed batch, with a
warm-up and a decay. Packed rows are slow on a CPU for one reason: attention is dense there, so a row of 2,048 tokens
costs as much as one sample of 2,048 tokens, and most of the pairs that it computes belong to different samples and are
masked. A variable-length kernel on a GPU computes only pairs within a sample. On some workloads the ranks of the
published package end at different steps, where a plain DDP loop would wait forever; the comparison ends its epoch when
the first rank ends and counts the samples emitted so far. Every loader has one worker per rank. Workers that live
across epochs are started before the clock starts; this applies to this package only."""),
    "scaling": ("Scaling", scaling, ""),
    "curves": ("Settings", curves, """
The data of the curves in [tuning.md](tuning.md): one setting varies, the others keep their defaults."""),
    "gpu": ("On a GPU", gpu, ""),
}  # fmt: skip

TAIL = """
## Single figures
Each of these programs measures one thing; the pages in the table state the results.

| program | what it measures |
|---|---|
| `tools/bench/alignment.py` | the cost of agreeing on steps, per rank ([protocol.md](protocol.md)) |
| `tools/bench/step_waits.py` | how long a training loop waits for its next step |
| `tools/bench/learning_rate.py` | rules for the learning rate with uneven batches ([trainers.md](trainers.md)) |
| `tools/bench/resume.py` | the cost of a state, and of the first batch after a load ([resume.md](resume.md)) |
| `tools/bench/storage.py` | reading from an object store |
| `tools/bench/vision.py` | images: throughput, memory, balance ([vision.md](vision.md)) |
| `tools/bench/live.py` | the cost of the live view ([live.md](live.md)) |
"""


def section(name: str, folder: Path) -> str:
    """One benchmark: its command, the machine, its tables; or a note that it has not been measured."""
    title, module, words = SECTIONS[name]
    if not (folder / f"{name}.json").exists():
        return f"\n## {title}\nNot measured yet. To measure it, run `python tools/bench {name}` on suitable hardware.\n"
    result = load(name, folder)
    return f"\n## {title}\n{provenance(result)}{words}\n\n{module.page(result['figures'])}\n"


def provenance(result: dict[str, Any]) -> str:
    """Command, machine, versions and date in a sentence."""
    machine = result["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return (
        f"`{result['command']}`, {result['date']}: {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}, {packages}.\n"
    )


def text(folder: Path = FOLDER) -> str:
    return HEAD + "".join(section(name, folder) for name in SECTIONS) + TAIL


SHOWN = {
    "fixed 8": "8 samples a batch",
    "paper-window 256": "published window policy",
    "lhotse 2,048": "lhotse, dynamic bucketing",
    "anchored (default)": "**odb_stream, padded**",
    "packed (default)": "**odb_stream, packed**",
    "gmt": "oracle: all lengths known in advance",
}
FIGURES = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.S)


def short(folder: Path = FOLDER) -> str:
    """The table of the README: the critical ratio with 8 ranks, on the paper-like arrays."""
    every = load("quality", folder)["figures"]["rows"]
    rows = [one for one in every if one["ranks"] == 8 and one["samples"] >= SAMPLES]
    arrays = list(dict.fromkeys(one["array"] for one in rows))[-4:]
    ratios = {(one["policy"], one["array"]): one["critical_ratio"] for one in rows}
    shown = [[words, *(ratios.get((name, array)) for array in arrays)] for name, words in SHOWN.items()]
    words = (
        "The critical ratio with 8 ranks: the slowest rank's tokens, padding included, summed over the steps, over the "
        "real tokens of one rank. It determines the time of synchronous steps; 1 is ideal. 20,000 samples each, a "
        "budget of 16,384 tokens.\n\n"
    )
    parts = [words + table(["", *(array.replace("_like", "-like") for array in arrays)], shown)]
    if (folder / "training.json").exists():
        parts.append(training.in_short(load("training", folder)["figures"]))
    return "\n\n".join(
        [*parts, "All figures, with machine, versions and commands: [docs/benchmarks.md](docs/benchmarks.md)."]
    )


def write() -> None:
    """Write the page, its picture and the README's table."""
    PAGE.write_text(text(), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(FIGURES.sub(lambda found: f"{found[1]}{short()}\n{found[2]}", readme), encoding="utf-8")
    if (FOLDER / "quality.json").exists():
        pictures.write_quality(load("quality")["figures"], PICTURES)
