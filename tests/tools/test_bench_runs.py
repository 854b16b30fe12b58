"""Every benchmark runs on few samples, and its table can be made of the figures."""

import subprocess
import sys
from pathlib import Path

import page
import pytest
from results import load

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
