"""When a view looks, and where it shows the figures: the table, a callback, TensorBoard."""

import io
import math
import sys
from unittest.mock import Mock

import pytest
import torch
from live_support import Clock, Script, scalars_in
from rich.console import Console

import odb_stream as odb
from odb_stream.live import LiveView
from odb_stream.live.table import live_table
from odb_stream.live.view import MOST_SHARE, is_first_process


def ticking(live, clock, loader, steps, seconds=0.1):
    for _ in range(steps):
        clock.now += seconds
        loader.step(2, 500, 1000)
        live.update()


def test_looks_are_so_many_seconds_apart_or_at_every_step():
    """Fails with: an ``update`` that looks at every step although it should wait."""
    clock, loader, seen = Clock(), Script(), []
    with LiveView(loader, every=0.55, callback=seen.append, clock=clock) as live:
        begun = loader.reports
        ticking(live, clock, loader, 100)
        assert len(seen) == loader.reports - begun == 16
        assert [round(figures["seconds"], 6) for figures in seen[:3]] == [0.6, 1.2, 1.8]
    assert len(seen) == 17
    assert seen[-1]["steps"] == 100
    live.update()
    live.close()
    assert len(seen) == 17
    with LiveView(loader, every=0, callback=seen.append, clock=clock) as live:
        ticking(live, clock, loader, 7)
    assert [figures["steps"] - 100 for figures in seen[17:]] == [1, 2, 3, 4, 5, 6, 7, 7]


def test_a_view_that_shows_nothing_does_not_look(capsys):
    clock, loader = Clock(), Script()
    with LiveView(loader, clock=clock) as live:
        begun = loader.reports
        ticking(live, clock, loader, 100)
        assert loader.reports == begun
        assert live.figures()["steps"] == 100
    assert loader.reports == begun + 1
    assert capsys.readouterr() == ("", "")


def test_a_long_look_delays_the_next():
    """Fails with: a time between looks that does not grow with the cost of a look."""
    clock, loader, seen = Clock(), Script(), []

    def slow(figures):
        clock.now += 0.02
        seen.append(figures)

    with LiveView(loader, every=0.5, callback=slow, clock=clock) as live:
        ticking(live, clock, loader, 1000)
        assert len(seen) == pytest.approx(100 * MOST_SHARE / 0.02, abs=1)


def test_the_callback_is_not_called_after_its_own_error_or_one_of_the_run():
    clock, loader, calls = Clock(), Script(), []

    def bad(figures):
        calls.append(figures)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        with LiveView(loader, callback=bad, clock=clock) as live:
            ticking(live, clock, loader, 100)
    live = LiveView(loader, callback=bad, clock=clock)
    with pytest.raises(ZeroDivisionError, match="mine"):
        ticking(live, clock, loader, 100)
    live.close()
    assert len(calls) == 2
    with pytest.raises(ZeroDivisionError, match="the run's"), LiveView(loader, callback=bad):
        raise ZeroDivisionError("the run's")
    assert len(calls) == 2


def test_the_loss_may_be_a_number_or_a_tensor_and_holds_no_graph():
    clock, loader = Clock(), Script()
    live = LiveView(loader, clock=clock)
    assert live.figures()["loss"] is None
    live.update(1.5)
    assert live.figures()["loss"] == 1.5
    live.update(torch.ones((), requires_grad=True) * 2)
    live.update()
    assert live.figures()["loss"] == 2.0
    assert not live._loss.requires_grad
    live.update(float("nan"))
    assert math.isnan(live.figures()["loss"])


def recorded(figures, width=120):
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(live_table(figures, "run"))
    return console.file.getvalue().splitlines()


def cells(lines):
    """Label -> its cells that are not empty."""
    rows = [[cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")] for line in lines if "│" in line]
    return {row[0]: [cell for cell in row[1:] if cell] for row in rows}


def seen_after(loader):
    clock = Clock()
    live = LiveView(loader, clock=clock)
    clock.now += 10
    loader.step(30, 600, 1000, others=((20, 900, 1000),) * (loader.world.size - 1))
    live.figures()
    clock.now += 5
    loader.step(12, 800, 1000, others=((6, 500, 500),) * (loader.world.size - 1))
    loader.waits |= {"trainer": 1.0, "workers": 0.75}
    loader.dropped, loader.dropped_of_all = {"too_long": 1}, {"too_long": 4, "empty": 1200}
    live.update(2.34567)
    return live.figures()


def test_the_table_of_one_rank():
    lines = recorded(seen_after(Script()))
    assert "run" in lines[0]
    assert [word.strip() for word in lines[2].split("┃") if word.strip()] == ["recent", "overall"]
    assert cells(lines) == {
        "samples/s": ["2.4", "2.8"],
        "real tokens/s": ["160", "93.3"],
        "padded tokens/s": ["200", "133"],
        "padding": ["20.00%", "30.00%"],
        "utilisation": ["80.00%", "70.00%"],
        "waited: trainer": ["20.0%", "1.0 s"],
        "loader waited: workers": ["15.0%", "0.8 s"],
        "loader waited: read": ["0.0%", "0.0 s"],
        "loader waited: peers": ["0.0%", "0.0 s"],
        "loader waited: room": ["0.0%", "0.0 s"],
        "steps": ["1", "2"],
        "samples": ["42"],
        "dropped: too_long": ["1"],
        "loss": ["2.3457"],
        "time": ["5.0 s", "15.0 s"],
    }
    assert lines[-1] == (
        "the trainer waits for data: 20.0% of the last 5.0 s, mostly for the workers, which run the stages"
    )


def test_the_table_of_several_ranks_has_all_of_them_beside_this_one():
    lines = recorded(seen_after(Script(rank=1, ranks=2)), width=80)
    header = [[word.strip() for word in line.split("┃") if word.strip()] for line in lines[2:4]]
    assert header == [["rank 1", "rank 1", "2 ranks", "2 ranks"], ["recent", "overall"] * 2]
    shown = cells(lines)
    assert shown["loader waited: workers"] == ["15.0%", "0.8 s"]
    assert shown["samples/s"] == ["2.4", "2.8", "3.6", "4.5"]
    assert shown["padding"] == ["20.00%", "30.00%", "13.33%", "20.00%"]
    assert shown["utilisation"] == ["80.00%", "70.00%", "65.00%", "70.00%"]
    assert shown["imbalance"] == ["1.333", "1.143"]
    assert shown["samples"] == ["42", "68"]
    assert shown["dropped: too_long"] == ["1", "4"]
    assert shown["dropped: empty"] == ["0", "1,200"]


def test_scalars_are_every_number_by_its_path_at_the_loaders_step(tmp_path):
    clock, loader = Clock(), Script()
    with LiveView(loader, tensorboard=tmp_path / "runs", clock=clock) as live:
        ticking(live, clock, loader, 100, seconds=0.125)
        loader.dropped["too_long"] = 2
        ticking(live, clock, loader, 3, seconds=0.125)
        live.update(0.5)
    found = scalars_in(tmp_path / "runs")
    assert [step for step, _ in found["odb_stream/recent/samples_per_second"]] == [4, 44, 84, 103]
    assert found["odb_stream/recent/samples_per_second"][-1][1] == pytest.approx(16)
    assert found["odb_stream/recent/padding"][-1][1] == pytest.approx(0.5)
    assert found["odb_stream/recent/wait_share/trainer"][-1][1] == 0
    assert found["odb_stream/dropped/too_long"] == [(103, 2.0)]
    assert found["odb_stream/loss"] == [(103, 0.5)]
    assert found["odb_stream/samples"][-1] == (103, 206.0)
    assert not [tag for tag in found if "global" in tag or "rank" in tag or not tag.startswith("odb_stream/")]


def test_the_users_writer_is_not_closed_and_gets_the_figures_of_all_ranks(tmp_path):
    """A folder is written by the first rank only."""
    clock, loader, writer = Clock(), Script(rank=1, ranks=2), Mock(["add_scalar", "close"])
    with LiveView(loader, tensorboard=writer, clock=clock), LiveView(loader, tensorboard=tmp_path / "runs"):
        clock.now += 1
        loader.step(1, 500, 1000, others=((1, 500, 500),))
    assert not (tmp_path / "runs").exists()
    writer.close.assert_not_called()
    writer.add_scalar.assert_any_call("odb_stream/global/overall/imbalance", pytest.approx(4 / 3), 1)


def test_peers_of_a_mesh_have_one_first_process(monkeypatch):
    for process, first in enumerate((False, True, False, False)):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda process=process: process)
        places = (1, 0, 0, 1)
        assert is_first_process(odb.World(places[process], 2, places=places)) is first


REFUSED = [
    ({"every": -1}, "every is -1"),
    ({"every": math.inf}, "every is inf"),
    ({"every": math.nan}, "every is nan"),
    ({"tensorboard": __file__}, r"tensorboard is '.*\.py', where no event file can be written"),
    ({"tensorboard": 5}, "tensorboard must be a folder or a SummaryWriter, not 5"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_a_setting_out_of_range_is_refused(settings, message):
    with pytest.raises(odb.ConfigError, match=message):
        LiveView(Script(), **settings)


def test_without_tensorboard_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(odb.ConfigError, match=r'pip install "odb-stream\[tensorboard\]"'):
        LiveView(Script(), tensorboard=str(tmp_path))
