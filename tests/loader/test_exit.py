"""The interpreter exits in the middle of an epoch: quietly, and without waiting."""

import subprocess
import sys

import pytest

SCRIPT = """
import odb_stream as odb

rows = [{"input_ids": [1, 2, 3]}] * 5_000
loader = odb.Loader(odb.Pipeline(odb.FromDataset(rows)), budget=odb.Budget(64), closure=%r, quota=%r)
batches = iter(loader)
for _ in range(3):
    next(batches)
"""


@pytest.mark.parametrize(("closure", "quota"), [("join", None), ("quota", 4_000)])
def test_a_program_may_exit_mid_epoch(closure: str, quota: int | None) -> None:
    """An iterator that was closed by its ``__del__`` only met an interpreter half taken down."""
    command = [sys.executable, "-c", SCRIPT % (closure, quota)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
