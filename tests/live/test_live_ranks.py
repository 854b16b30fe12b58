"""Two ranks, each with a view: the figures of both on each, the wait for the other, and one table."""

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from live_support import Clock
from ranks_support import run_ranks, values
from ranks_training import Case
from terminal_support import drawn_on

import odb_stream as odb
from odb_stream.live import LiveView
from odb_stream.nodes import waits
from odb_stream.nodes.waits import Waits
from odb_stream.ranks.gloo import Gloo

CASE = Case((60, 20), shuffle=False, settings={"window": 64})
WAITED = 10.0
"""Seconds that the first gather of a rank takes on its clock; nothing else takes any."""


@contextmanager
def a_terminal() -> Iterator[list[bytes]]:
    """Standard error is a terminal inside the block; afterwards the list contains what was drawn."""
    ours, theirs = pty.openpty()
    got: list[bytes] = []
    log = os.dup(2)
    os.dup2(theirs, 2)
    os.close(theirs)
    # A terminal that nobody reads fills up, and writing to it blocks.
    reader = threading.Thread(target=lambda: got.append(drawn_on(ours)))
    reader.start()
    try:
        with patch.dict(os.environ, TERM="xterm", COLUMNS="120"):
            yield got
    finally:
        os.dup2(log, 2)
        reader.join(60)


@contextmanager
def one_wait(clock: Clock) -> Iterator[None]:
    """The clock advances during the first gather of the loader's thread, while the training loop also waits."""
    begun, moves, on, gather = threading.Event(), iter([WAITED]), Waits.on, Gloo.gather

    @contextmanager
    def noted(self: Waits, stage: str) -> Iterator[None]:
        with on(self, stage):
            if stage == "trainer":
                begun.set()
            yield

    def slow(self: Gloo, values: Any, **given: Any) -> Any:
        found = gather(self, values, **given)
        if threading.current_thread() is not threading.main_thread():
            assert begun.wait(60)
            clock.now += next(moves, 0.0)
        return found

    frozen = patch.object(waits, "time", SimpleNamespace(perf_counter=clock))
    with frozen, patch.object(Waits, "on", noted), patch.object(Gloo, "gather", slow):
        yield


def watch() -> dict[str, Any]:
    """Each rank returns its figures, its padded tokens by step, and what was drawn."""
    seen: list[dict[str, Any]] = []
    padded, clock = [], Clock()
    with (
        one_wait(clock),
        a_terminal() as drawn,
        CASE.loader() as loader,
        LiveView(loader, every=0, callback=seen.append, clock=clock) as live,
    ):
        for batch in loader:
            padded.append(odb.pop_step(batch).padded_tokens)
            live.update()
    return {"first": seen[0], "last": seen[-1], "padded": padded, "drawn": b"".join(drawn).decode()}


def test_imbalance_waiting_for_peers_and_one_table() -> None:
    """Fails with: gathers that are not counted, an unknown largest rank, or a table drawn by every rank."""
    ranks = values(run_ranks(watch, 2))
    steps = list(zip(*(rank["padded"] for rank in ranks), strict=True))
    largest, mean = sum(map(max, steps)), sum(map(sum, steps)) / 2
    assert largest > mean
    for number, rank in enumerate(ranks):
        last = rank["last"]
        assert (last["rank"], last["ranks"], last["steps"]) == (number, 2, len(steps))
        assert abs(last["global"]["overall"]["imbalance"] - largest / mean) < 1e-9
        assert last["global"]["samples"] == sum(CASE.shares)
        assert last["overall"]["wait_seconds"]["peers"] == WAITED
        first = rank["first"]
        assert first["trainer_waits_for"] == "peers"
        assert first["verdict"] == "the trainer waits for data: 100.0% of the last 10.0 s, mostly for other ranks"
    assert "rank 0" in ranks[0]["drawn"]
    assert "imbalance" in ranks[0]["drawn"]
    assert not set("┃│\x1b") & set(ranks[1]["drawn"]), "log lines at most"
