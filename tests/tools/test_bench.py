"""Benchmarks run on few samples; page, README and tuning guide say what the files of figures say, as the code does."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import curves
import page
import pictures
import pytest
import quality
from results import FOLDER, load

RESULTS = sorted(FOLDER.glob("*.json"))
QUALITY = load("quality")["figures"]
SEEDED = {
    (row["array"], row["ranks"], row["policy"]): row
    for row in QUALITY["rows"]
    if row["array"] in quality.SEEDED and not row["policy"].startswith("lhotse")
}


def test_the_page_is_made_of_the_results() -> None:
    """If not: ``python tools/bench page``."""
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


def test_the_table_of_the_readme_is_too() -> None:
    shown = page.FIGURES.search(page.README.read_text(encoding="utf-8"))
    assert shown is not None
    assert shown[0] == f"{shown[1]}{page.short()}\n{shown[2]}"


@pytest.mark.parametrize("ranks", [1, 8])
def test_batch_quality_is_what_the_code_gives(ranks: int) -> None:
    """If not, and it is meant: ``python tools/bench quality``."""
    for policy in quality.policies():
        for name in quality.SEEDED:
            if policy.name.startswith("lhotse"):
                continue
            lengths = quality.workload(name)
            told = quality.row(name, policy, ranks, policy.run(lengths, ranks), len(lengths))
            assert told == SEEDED[name, ranks, policy.name]


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_every_result_says_where_it_is_from(result) -> None:
    told = json.loads(result.read_text(encoding="utf-8"))
    assert told["benchmark"] == result.stem
    assert told["command"].startswith(f"python tools/bench {result.stem}")
    assert {"cores", "processor", "memory_gib", "python"} <= told["machine"].keys()
    assert {"torch", "numpy"} <= told["versions"].keys()


def test_on_every_array_the_defaults_are_ahead_with_8_ranks() -> None:
    """Of the published policy by 8 %, of lhotse by any margin. Packed rows of long arrays are within 1 % of ideal."""
    ratios = {(row["array"], row["policy"]): row for row in QUALITY["rows"] if row["ranks"] == 8}
    for array in {name for name, _ in ratios}:
        ours = ratios[array, "anchored (default)"]["critical_ratio"]
        assert ours <= 0.92 * ratios[array, "paper-window 256"]["critical_ratio"], array
        for buffer in quality.LHOTSE_BUFFERS:
            assert ours < ratios[array, f"lhotse {buffer:,}"]["critical_ratio"], array
        packed = ratios[array, "packed (default)"]
        assert packed["critical_ratio"] <= 1.01 or packed["samples"] < quality.FEW, array


TOOLS = Path(__file__).parents[2] / "tools" / "bench"
SMALL = {
    "quality": ["--lengths", "nowhere", "--samples", "500", "--ranks", "2", "8"],
    "loading": ["--samples", "200", "--rounds", "1"],
    "training": ["--rounds", "1", "--tokens", "9000"],
    "gpu": [
        "--device", "cpu", "--parameters", "tiny", "--steps", "2", "--budget", "1024", "--scale", "16",
        "--tokens", "20000",
    ],  # the script itself, where there is no device
    "scaling": ["--most-ranks", "64", "--most-samples", "10000"],
}  # fmt: skip


def run(*words: str, fails: bool = False) -> str:
    command = [sys.executable, str(TOOLS), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    before = page.PAGE.read_text(encoding="utf-8")
    run(name, *SMALL[name], "--out", str(tmp_path))
    result = load(name, tmp_path)
    _, module, _ = page.SECTIONS[name]
    made = module.page(result["figures"])
    assert "| " in made
    assert page.section(name, tmp_path).count(made) == 1
    assert page.PAGE.read_text(encoding="utf-8") == before, "a run into another folder leaves the page alone"


def test_without_a_cuda_device_the_gpu_benchmark_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert "no CUDA device" in run("gpu", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_is_not_measured_is_said_to_be(tmp_path: Path) -> None:
    assert "Not measured yet" in page.section("gpu", tmp_path)


def test_an_unknown_benchmark_is_refused() -> None:
    assert "'speed'" in run("speed", fails=True)


CURVES: dict[str, Any] = load("curves")["figures"]


def along(axis: str, workload: str, layout: str, key: str) -> list[Any]:
    """One line of a curve, by growing value."""
    return [one[key] for one in CURVES[axis] if (one["workload"], one["layout"]) == (workload, layout)]


@pytest.mark.parametrize(
    ("axis", "value", "workload", "layout"),
    [
        ("window", 64, "chat", "padded"),
        ("budget", 65_536, "mixed", "padded"),
        ("lookahead", 8, "mixed", "padded"),
        ("ranks", 2, "chat", "packed"),
    ],
)
def test_a_point_comes_out_again(axis: str, value: int, workload: str, layout: str) -> None:
    place = (workload, layout, value)
    (kept,) = [one for one in CURVES[axis] if (one["workload"], one["layout"], one["value"]) == place]
    assert curves.point(axis, value, workload, layout, CURVES["samples_a_rank"]) == kept


@pytest.mark.parametrize("workload", curves.WORKLOADS)
def test_the_curves_have_the_shape_that_the_guide_tells(workload: str) -> None:
    padding = along("window", workload, "padded", "padding_ratio")
    for before, after in pairwise(padding):
        assert 0.45 < after / before < 0.75  # "about two fifths"
    for axis in curves.RANGES:
        assert max(along(axis, workload, "packed", "critical_ratio")) < 1.01
    critical = along("lookahead", workload, "padded", "critical_ratio")
    assert critical == sorted(critical, reverse=True)
    first = along("window", workload, "padded", "read_before_the_first_batch")
    assert len(set(first[2:])) == 1  # from 256 on
    for one in CURVES["window"]:
        assert one["max_delay"] <= one["value"]


def test_the_guide_holds_the_tables_of_the_figures() -> None:
    guide = curves.GUIDE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- curve (\w+) -->", guide)) == sorted([*curves.RANGES, "workers"])
    assert curves.with_tables(guide, CURVES) == guide


@pytest.mark.parametrize("axis", [*curves.RANGES, "workers"])
def test_a_picture_is_readable_on_light_and_dark(axis: str) -> None:
    """Its words are text, and nothing is drawn in black or white, nor is the ground painted."""
    picture = (curves.GUIDE.parent / "pictures" / f"tuning-{axis}.svg").read_text(encoding="utf-8")
    assert "<text" in picture
    assert "sans-serif" in picture
    assert not re.search(r"#(000000|ffffff)|: (black|white)", picture)
    for text in re.findall(r"<text [^>]*>", picture):
        assert pictures.GREY in text
