"""On a terminal the table is drawn and the terminal put back, however the run ends; elsewhere nothing is written."""

import subprocess
import sys

import pytest
from terminal_support import HIDDEN, PROGRAM, SHOWN, Ended, on_a_terminal
from waiting import PATIENCE

VIEW = "with LiveView(loader, title='my run', clock=clock) as live:\n    "


def drawn(body: str, **settings: bool) -> Ended:
    return on_a_terminal("-c", PROGRAM + body, **settings)


def test_the_table_is_drawn_over_and_over_and_the_cursor_comes_back():
    ended = drawn(f"{VIEW}steps(live)")
    assert (ended.code, ended.out) == (0, "")
    assert ended.drawn.count("my run") == 22 + 1  # begun, 20 steps, the last look; and once more to leave it standing
    assert ended.drawn.count(HIDDEN) == ended.drawn.count(SHOWN) == 1
    assert ended.drawn.index(HIDDEN) < ended.drawn.index("my run")
    assert ended.drawn.rstrip().endswith(SHOWN)
    assert "padded tokens/s" in ended.drawn
    assert "data wait for the trainer: it waited 0.0% of the last 5.0 s" in ended.drawn


ENDS = {
    "an error": ("1 / 0", 1, "ZeroDivisionError"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt"),
    "exit": ("sys.exit(7)", 7, ""),
}


@pytest.mark.parametrize(("line", "code", "said"), ENDS.values(), ids=ENDS)
def test_the_terminal_is_put_back_before_the_end_is_told(line, code, said):
    ended = drawn(f"{VIEW}steps(live); {line}")
    assert ended.code == code
    assert ended.drawn.count(SHOWN) == 1
    assert said in ended.drawn[ended.drawn.index(SHOWN) :]


def test_a_view_that_was_never_closed_is_put_back_at_the_end_of_the_program():
    """Fails without the finalizer."""
    ended = drawn("live = LiveView(loader, clock=clock)\nsteps(live)")
    assert ended.code == 0
    assert ended.drawn.count(HIDDEN) == ended.drawn.count(SHOWN) == 1


def test_what_is_printed_goes_above_the_table_or_where_standard_output_leads():
    """Fails where standard output is taken though it is no terminal: results would be lost to a pipe or a file."""
    ended = drawn(f"{VIEW}steps(live, 2); print('result'); print('a word', file=sys.stderr); steps(live, 2)")
    assert (ended.code, ended.out) == (0, "result\n")
    assert ended.drawn.count("a word") == 1


def test_a_terminal_that_goes_away_ends_the_drawing_and_not_the_run():
    """Fails where the last table must be written."""
    body = (
        f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"{VIEW}steps(live, 2); print('hang up', flush=True); sys.stdin.readline(); steps(live, 2)\n"
        "print(loader.mine[0], sys.stderr is sys.__stderr__)"
    )
    ended = drawn(body, hang_up=True)
    assert (ended.code, ended.out) == (0, "4 True\n")


TABLE = "with LiveView(loader, table={}, clock=clock) as live:\n    steps(live, loader=loader)\n"
RANK_1 = "loader = Script(rank=1, ranks=2)\n"


def test_only_rank_0_draws_unless_another_is_told_to():
    assert drawn(TABLE.format(False) + RANK_1 + TABLE.format(None)).drawn == ""
    told = drawn(RANK_1 + TABLE.format(True)).drawn
    assert "rank 1" in told
    assert "imbalance" in told


@pytest.mark.parametrize(("table", "tables"), [(None, 0), (True, 1)], ids=["nobody asked", "the last table"])
def test_where_nobody_watches_nothing_is_written(table, tables):
    program = [sys.executable, "-c", PROGRAM + TABLE.format(table)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.count("samples/s")) == (0, "", tables)
    assert bool(done.stderr) == bool(tables)
