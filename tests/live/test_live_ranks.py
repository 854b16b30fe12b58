"""Two ranks, each with a view: the figures of both on each, the wait for the other, and one table."""

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from ranks_support import run_ranks, values
from ranks_training import Case

import odb_stream as odb
from odb_stream.live import LiveView

CASE = Case((60, 20), shuffle=False, settings={"window": 64})
LATE = 0.5
"""Seconds by which rank 1 is late."""


@contextmanager
def a_terminal() -> Iterator[list[bytes]]:
    """Standard error is a terminal in the block; what it got is in the list after it."""
    ours, theirs = pty.openpty()
    got: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                got.append(part)
        except OSError:  # how Linux says that the other end is closed
            return

    log = os.dup(2)
    os.dup2(theirs, 2)
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield got
    finally:
        os.dup2(log, 2)
        reader.join(20)


def watch() -> dict[str, Any]:
    """Rank 1 begins late; each rank gives its figures, its padded tokens by step, and what was drawn."""
    seen: list[dict[str, Any]] = []
    padded = []
    with a_terminal() as drawn, CASE.loader() as loader, LiveView(loader, every=0, callback=seen.append) as live:
        dist.barrier()
        if dist.get_rank() == 1:
            threading.Event().wait(LATE)
        for batch in loader:
            padded.append(odb.pop_step(batch).padded_tokens)
            live.update()
    return {"first": seen[0], "last": seen[-1], "padded": padded, "drawn": b"".join(drawn).decode()}


def test_imbalance_waiting_for_peers_and_one_table() -> None:
    """Fails when gathers are not counted, when the largest rank is not known, or when every rank draws."""
    ranks = values(run_ranks(watch, 2))
    steps = list(zip(*(rank["padded"] for rank in ranks), strict=True))
    largest, mean = sum(map(max, steps)), sum(map(sum, steps)) / 2
    assert largest > mean
    for number, rank in enumerate(ranks):
        last = rank["last"]
        assert (last["rank"], last["ranks"], last["steps"]) == (number, 2, len(steps))
        assert abs(last["global"]["overall"]["imbalance"] - largest / mean) < 1e-9
        assert last["global"]["samples"] == sum(CASE.shares)
        assert last["overall"]["wait_seconds"]["peers"] > 0
    first = ranks[0]["first"]
    assert first["trainer_waits_for"] == "peers"
    assert first["verdict"].endswith("mostly for other ranks")
    assert first["overall"]["wait_seconds"]["peers"] > LATE / 2
    assert "rank 0" in ranks[0]["drawn"]
    assert "imbalance" in ranks[0]["drawn"]
    assert not set("┃│\x1b") & set(ranks[1]["drawn"]), "log lines at most"
