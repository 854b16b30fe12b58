"""The benchmarks page says what the JSON files say, and these say what the code gives today."""

import json

import page
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
