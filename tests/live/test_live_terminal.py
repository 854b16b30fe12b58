"""On a terminal the table is drawn and the terminal restored, however the run ends; elsewhere nothing is written."""

import subprocess
import sys

import pytest
from terminal_support import HIDDEN, PROGRAM, SHOWN, Ended, on_a_terminal
from waiting import PATIENCE

VIEW = "with LiveView(loader, title='my run', clock=clock) as live:\n    "


def drawn(body: str, **settings: bool) -> Ended:
    return on_a_terminal("-c", PROGRAM + body, **settings)


def test_the_table_is_redrawn_and_the_cursor_is_shown_again():
    ended = drawn(f"{VIEW}steps(live)")
    assert (ended.code, ended.out) == (0, "")
    assert ended.drawn.count("my run") == 22 + 1  # start, 20 steps, the last look; again to leave it on the screen
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
def test_the_terminal_is_restored_before_the_error_is_printed(line, code, said):
    ended = drawn(f"{VIEW}steps(live); {line}")
    assert ended.code == code
    assert ended.drawn.count(SHOWN) == 1
    assert said in ended.drawn[ended.drawn.index(SHOWN) :]


def test_a_view_that_was_never_closed_restores_the_terminal_at_exit():
    """Fails with: no finalizer."""
    ended = drawn("live = LiveView(loader, clock=clock)\nsteps(live)")
    assert ended.code == 0
    assert ended.drawn.count(HIDDEN) == ended.drawn.count(SHOWN) == 1


def test_printed_lines_go_above_the_table_or_to_where_standard_output_leads():
    """Fails with: standard output redirected although it is not a terminal, so that a pipe or file loses results."""
    ended = drawn(f"{VIEW}steps(live, 2); print('result'); print('a word', file=sys.stderr); steps(live, 2)")
    assert (ended.code, ended.out) == (0, "result\n")
    assert ended.drawn.count("a word") == 1


def test_a_terminal_that_goes_away_ends_the_drawing_but_not_the_run():
    """Fails with: an error if the last table cannot be drawn."""
    body = (
        f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"{VIEW}steps(live, 2); print('hang up', flush=True); sys.stdin.readline(); steps(live, 2)\n"
        "print(loader.mine[0], sys.stderr is sys.__stderr__)"
    )
    ended = drawn(body, hang_up=True)
    assert (ended.code, ended.out) == (0, "4 True\n")


TABLE = "with LiveView(loader, table={}, clock=clock) as live:\n    steps(live, loader=loader)\n"
RANK_1 = "loader = Script(rank=1, ranks=2)\n"


def test_only_rank_0_draws_unless_another_rank_is_asked_to():
    assert drawn(TABLE.format(False) + RANK_1 + TABLE.format(None)).drawn == ""
    asked = drawn(RANK_1 + TABLE.format(True)).drawn
    assert "rank 1" in asked
    assert "imbalance" in asked


@pytest.mark.parametrize(("table", "tables"), [(None, 0), (True, 1)], ids=["nobody asked", "the last table"])
def test_without_a_terminal_only_a_table_on_request_is_written(table, tables):
    program = [sys.executable, "-c", PROGRAM + TABLE.format(table)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.count("samples/s")) == (0, "", tables)
    assert bool(done.stderr) == bool(tables)
