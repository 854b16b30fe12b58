"""Whole programs: every start method, torchrun, and processes that end without closing their loader."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks_support import DEADLINE, run_ranks, values
from ranks_training import Case, in_order, two_epochs_with_workers, watched_epoch

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "support" / "train_script.py"
TROUBLES = ("Traceback", "terminate called", "Fatal Python error", "Exception ignored")
CASE = Case((220, 240), settings={"lookahead": 4})


def check_two_epochs(ranks: list[list[Any]], output: str) -> None:
    """All samples came up in both epochs, and the ranks wrote of no trouble."""
    for epochs in zip(*ranks, strict=True):
        assert in_order(epochs) == list(range(160))
    assert not any(trouble in output for trouble in TROUBLES), output


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_with_workers_under_every_start_method(method: str) -> None:
    outcomes = run_ranks(two_epochs_with_workers, 2, method=method)
    check_two_epochs(values(outcomes), "".join(outcome.output for outcome in outcomes))


def test_ranks_with_workers_under_torchrun(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, str(SCRIPT), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL)
    assert process.returncode == 0, process.stderr
    check_two_epochs([json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)], process.stderr)


FORGOTTEN: list[object] = []
"""Keeps loaders alive until the interpreter ends."""


def end_unclosed(how: str) -> None:
    """End with loaders that were never closed: one that is done, one mid-epoch, one mid-epoch with workers."""
    done, halfway, working = (CASE.loader(workers=workers) for workers in (0, 0, 1))
    watched_epoch(done)
    iterators = [iter(halfway), iter(working)]
    for iterator in iterators:
        next(iterator)
    FORGOTTEN.extend([done, halfway, working, *iterators])
    if how == "exit":
        sys.exit(7)


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("exit", 7)])
def test_a_process_ends_cleanly_with_unclosed_loaders(how: str, code: int) -> None:
    """No hang, no abort ("terminate called"), no traceback of a thread that was cut off."""
    for outcome in run_ranks(end_unclosed, 2, how, method="spawn", exits={0: code, 1: code}):
        assert outcome.error == ""
        # Where rank 0 is the first to end, torch may warn rank 1 that the store is gone.
        assert not any(trouble in outcome.output for trouble in TROUBLES), outcome.output


def end_alone() -> None:
    """Rank 0, which hosts the store, ends its process mid-epoch, and the other continues."""
    stream = CASE.loader()
    iterator = iter(stream)
    next(iterator)
    FORGOTTEN.extend([stream, iterator])
    if dist.get_rank():
        for _ in iterator:
            pass


def test_a_rank_that_ends_unclosed_stops_its_peer() -> None:
    """The peer's loop raises, naming the rank that is gone, and its own end is clean all the same."""
    first, second = run_ranks(end_alone, 2, method="spawn")
    assert (first.error, first.output) == ("", "")
    assert second.error == "PeerError"
    assert "rank 0" in second.text
