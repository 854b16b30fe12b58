"""The curves of the tuning guide: they are what the code gives, have the shape it describes, and are in its tables."""

import re
from itertools import pairwise
from typing import Any

import curves
import pictures
import pytest
import results

FIGURES: dict[str, Any] = results.load("curves")["figures"]


def along(axis: str, workload: str, layout: str, key: str) -> list[Any]:
    """One line of a curve, by growing value."""
    return [one[key] for one in FIGURES[axis] if (one["workload"], one["layout"]) == (workload, layout)]


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
    (kept,) = [one for one in FIGURES[axis] if (one["workload"], one["layout"], one["value"]) == place]
    assert curves.point(axis, value, workload, layout, FIGURES["samples_a_rank"]) == kept


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
    for one in FIGURES["window"]:
        assert one["max_delay"] <= one["value"]


def test_the_guide_holds_the_tables_of_the_figures() -> None:
    guide = curves.GUIDE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- curve (\w+) -->", guide)) == sorted([*curves.RANGES, "workers"])
    assert curves.with_tables(guide, FIGURES) == guide


@pytest.mark.parametrize("axis", [*curves.RANGES, "workers"])
def test_a_picture_is_readable_on_light_and_dark(axis: str) -> None:
    """Its words are text, and nothing is drawn in black or white, nor is the ground painted."""
    picture = (curves.GUIDE.parent / "pictures" / f"tuning-{axis}.svg").read_text(encoding="utf-8")
    assert "<text" in picture
    assert "sans-serif" in picture
    assert not re.search(r"#(000000|ffffff)|: (black|white)", picture)
    for text in re.findall(r"<text [^>]*>", picture):
        assert pictures.GREY in text
