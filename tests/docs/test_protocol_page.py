"""``docs/protocol.md`` is true: its worked example is what the code does, and the names on it exist."""

import re
from pathlib import Path

import numpy as np

from odb_stream.batching.cost import Footprint, Size
from odb_stream.batching.deal import deal_round, missing_groups, split_candidates, split_groups, steps_of_round
from odb_stream.config import Budget

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
FOOTPRINT = Footprint("padded", Budget(16))


def dealt(groups: list[list[int]], exhausted: list[bool]) -> list[list[tuple[int, int]]]:
    """For each step, cheapest first: (owner, cost) by rank."""
    deal = deal_round([np.array(own, dtype=np.int64) for own in groups], exhausted, rebalance=True)
    return [
        [(owner, groups[owner][place]) for owner, place in zip(owners, places, strict=True)]
        for owners, places in zip(deal.owner.tolist(), deal.place.tolist(), strict=True)
    ]


def test_the_drain_of_the_page() -> None:
    groups = [[12, 9, 16, 10], [15], [11, 8]]
    rows = re.findall(r"^\| (\d) \| ([\d, ]+) \| (active|exhausted) \|$", PAGE, re.M)
    assert [[int(cost) for cost in costs.split(",")] for _, costs, _ in rows] == groups
    exhausted = [state == "exhausted" for *_, state in rows]
    assert steps_of_round([4, 1, 2], exhausted, rebalance=True) == 2
    steps = dealt(groups, exhausted)
    assert steps == [[(0, 9), (2, 11), (2, 8)], [(0, 12), (1, 15), (0, 16)]]
    assert "| 0 | its 9 | the 11 of rank 2 | its 8 | 11 |" in PAGE
    assert "| 1 | its 12 | its 15 | the 16 of rank 0 | 16 |" in PAGE


def test_the_last_round_of_the_page() -> None:
    lengths = [(10,), (7, 4)]
    costs = [FOOTPRINT.tokens(group) for group in lengths]
    assert costs == [10, 14]
    known = [np.array(costs), np.array([], dtype=np.int64), np.array([], dtype=np.int64)]
    samples = [np.array([1, 2]), known[1], known[2]]
    assert missing_groups([2, 0, 0]) == 1
    candidates = split_candidates(known, samples)
    assert candidates == [(0, 1)]
    parts = split_groups({(0, 1): tuple(map(Size, lengths[1]))}, 1, FOOTPRINT)
    assert parts == {(0, 1): [(0,), (1,)]}
    assert dealt([[10, 7, 4], [], []], [True] * 3) == [[(0, 4), (0, 7), (0, 10)]]
    assert "Rank 0 keeps the 4; the 7 goes to rank 1 and the 10 to rank 2." in PAGE


def test_the_functions_and_tests_of_the_page_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "odb_stream").rglob("*.py"))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    defined = set(re.findall(r"^\s*(?:def|class) (\w+)", source, re.M))
    named = re.findall(r"`([A-Z][a-z]\w*(?:\.\w+)?|_?[a-z]+(?:_[a-z]+)+)`", PAGE)
    settings = {"max_bytes", "max_delay", "loss_scale"}
    for name in set(named) - settings:
        if name.startswith("test_"):
            assert f"def {name}(" in tests, name
        else:
            for part in name.split("."):
                assert part in defined or f"    {part}: " in source, name
    assert len(named) > 25
