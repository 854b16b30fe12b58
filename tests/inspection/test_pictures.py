"""Pictures: equal figures give equal bytes, and every source has a colour of its own or shares the last one."""

from inspection_data import pipeline, some_lengths

from odb_stream.inspection import inspect
from odb_stream.inspection.figures import Spread, Subset
from odb_stream.inspection.pictures import COLOURED_SOURCES, all_pictures, coloured, png, svg


def test_equal_figures_give_equal_pictures():
    found = inspect(pipeline(some_lengths(50)), window=8)
    drawn = [[svg(picture) for picture in all_pictures(found)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert png(all_pictures(found), title="a") == png(all_pictures(found), title="a")


def test_many_sources_share_the_last_colour():
    subsets = [
        Subset(name=str(size), tokens=size, lengths=Spread.of([1] * size), counts=(size, 1)) for size in range(1, 10)
    ]
    shown = coloured(subsets)
    assert [name for name, _ in shown] == ["9", "8", "7", "6", "5", "4 others"]
    assert len(shown) == COLOURED_SOURCES + 1
    assert shown[-1][1] == [1 + 2 + 3 + 4, 4]
    assert coloured(subsets[:6]) == [(subset.name, subset.counts) for subset in subsets[:6]]
