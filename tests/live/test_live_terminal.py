"""On a terminal the table is drawn and the terminal put back, however the run ends; elsewhere nothing is written."""

import subprocess
import sys
from pathlib import Path

import pytest
from terminal_support import HIDDEN, PROGRAM, SECONDS, SHOWN, on_a_terminal


def test_the_table_is_drawn_over_and_over_and_the_cursor_comes_back():
    ended = on_a_terminal("with LiveView(loader, title='my run', clock=clock) as live:\n    steps(live)")
    assert (ended.code, ended.out) == (0, "")
    assert ended.drawn.count("my run") == 22 + 1  # begun, 20 steps, the last look; and once more to leave it standing
    assert ended.drawn.count(HIDDEN) == ended.drawn.count(SHOWN) == 1
    assert ended.drawn.index(HIDDEN) < ended.drawn.index("my run")
    assert ended.drawn.rstrip().endswith(SHOWN)
    assert "padded tokens/s" in ended.drawn
    assert "data wait for the trainer: it waited 0.0% of the last 5.0 s" in ended.drawn


ENDS = {
    "an error": ("    1 / 0", 1, "ZeroDivisionError"),
    "Ctrl-C": ("    os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt"),
    "exit": ("    sys.exit(7)", 7, ""),
}


@pytest.mark.parametrize(("line", "code", "said"), ENDS.values(), ids=ENDS)
def test_the_terminal_is_put_back_before_the_end_is_told(line, code, said):
    ended = on_a_terminal(f"with LiveView(loader, clock=clock) as live:\n    steps(live)\n{line}")
    assert ended.code == code
    assert ended.drawn.count(SHOWN) == 1
    assert said in ended.drawn[ended.drawn.index(SHOWN) :]


def test_a_view_that_was_never_closed_is_put_back_at_the_end_of_the_program():
    """Fails without the finalizer."""
    ended = on_a_terminal("live = LiveView(loader, clock=clock)\nsteps(live)")
    assert ended.code == 0
    assert ended.drawn.count(HIDDEN) == ended.drawn.count(SHOWN) == 1


def test_what_is_printed_goes_above_the_table_or_where_standard_output_leads():
    """Fails where standard output is taken though it is no terminal: results would be lost to a pipe or a file."""
    body = (
        "with LiveView(loader, clock=clock) as live:\n    steps(live, 2)\n    print('result')\n"
        "    print('a word', file=sys.stderr)\n    steps(live, 2)"
    )
    ended = on_a_terminal(body)
    assert (ended.code, ended.out) == (0, "result\n")
    assert ended.drawn.count("a word") == 1


def test_a_terminal_that_goes_away_ends_the_drawing_and_not_the_run():
    """Fails where the last table must be written."""
    body = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with LiveView(loader, clock=clock) as live:\n    steps(live, 2)\n    print('hang up', flush=True)\n"
        "    sys.stdin.readline()\n    steps(live, 2)\n"
        "print(loader.mine[0], sys.stderr is sys.__stderr__)"
    )
    ended = on_a_terminal(body, hang_up=True)
    assert (ended.code, ended.out) == (0, "4 True\n")


def test_only_rank_0_draws_unless_another_is_told_to():
    body = "with LiveView(loader, table={table}, clock=clock) as live:\n    steps(live)"
    rank_1 = "rank=1, ranks=2"
    assert on_a_terminal(body.format(table=None), loader=rank_1).drawn == ""
    assert on_a_terminal(body.format(table=False)).drawn == ""
    told = on_a_terminal(body.format(table=True), loader=rank_1).drawn
    assert "rank 1" in told
    assert "imbalance" in told


@pytest.mark.parametrize("table", [None, True])
def test_where_nobody_watches_nothing_is_written(table):
    body = f"with LiveView(loader, table={table}, clock=clock) as live:\n    steps(live)"
    program = PROGRAM.format(folder=str(Path(__file__).parents[1] / "support"), loader="", body=body)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "")
    if table is None:
        assert done.stderr == ""
    else:
        assert done.stderr.count("samples/s") == 1, "asked for, the last table appears"
