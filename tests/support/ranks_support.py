"""Starts one function on every rank and brings back what became of each.

Ranks are real processes in one gloo group on loopback. Most tests need one call; the function stands at the top of a
module, and what it raises is a result like any other::

    outcomes = run_ranks(train, 2, settings)      # train(settings) on two ranks, until both have ended
    assert outcomes[0].error == "PeerError"       # value, error, text, output
    first, second = values(run_ranks(train, 2))   # or all values; fails when one raised, and shows what all wrote

A test that talks to its ranks while they run, or stops or kills one, keeps them in hand instead. The function finds its
own end of the conversation with :func:`line_to_test`::

    with start_ranks(train, 2) as ranks:
        assert ranks.hear(1) == "ready"           # train called line_to_test().send("ready")
        ranks.signal(1, signal.SIGKILL)
        assert ranks.outcome(0).error == "PeerError"

Nothing outlives the test: every wait has a deadline, and leaving the ``with`` block kills what still runs.
"""

import faulthandler
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from waiting import PATIENCE

DEADLINE = 180.0
"""Seconds after which whatever still runs is killed and the test fails; only what hangs takes nearly as long."""

PRELOADED = ["torch.distributed", "odb_stream.loader.loader", "pytest"]
"""What the fork server imports once, so that a rank starts in milliseconds."""

_lines: list[Connection] = []


def line_to_test() -> Connection:
    """On a rank: its line to the test."""
    return _lines[0]


@dataclass(frozen=True)
class Outcome:
    """What became of a rank: what its function returned, or the type and text of what it raised.

    ``output`` is what the process wrote so far.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    output: str = ""


@dataclass
class Ranks:
    """The running ranks of one test."""

    lines: list[Connection] = field(default_factory=list)
    processes: list[BaseProcess] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def tell(self, rank: int, message: Any = None) -> None:
        self.lines[rank].send(message)

    def tell_all(self, message: Any = None) -> None:
        for line in self.lines:
            line.send(message)

    def hear(self, rank: int, within: float = PATIENCE) -> Any:
        """The next message of a rank; fails the test when none arrives in time, or the rank ends without one."""
        line = self.lines[rank]
        # Not the line alone: a child that the rank forked may hold a copy of its end, and keep it open after its death.
        wait([line, self.processes[rank].sentinel], max(0.0, within))
        with suppress(EOFError):
            if line.poll():
                return line.recv()
        raise AssertionError(f"rank {rank} said nothing within {within:.1f} s\n{self.written()}")

    def hear_all(self, within: float = PATIENCE) -> list[Any]:
        return [self.hear(rank, within) for rank in range(len(self.lines))]

    def outcome(self, rank: int, within: float = PATIENCE) -> Outcome:
        """How a rank's function ended; fails the test when it has not ended in time, or says something else first."""
        ended = self.hear(rank, within)
        assert isinstance(ended, Outcome), ended
        return replace(ended, output=self.output(rank))

    def outcomes(self, within: float = PATIENCE) -> list[Outcome]:
        return [self.outcome(rank, within) for rank in range(len(self.lines))]

    def values(self, within: float = PATIENCE) -> list[Any]:
        """What all functions returned; fails the test if one raised."""
        return values(self.outcomes(within))

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def exit_code(self, rank: int, within: float = PATIENCE) -> int | None:
        """Wait for a process to end; None when it did not in time."""
        self.processes[rank].join(max(0.0, within))
        return self.processes[rank].exitcode

    def output(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace") if self.logs[rank].exists() else ""

    def written(self) -> str:
        """What every rank has written so far, for the message of a failure."""
        return "\n".join(f"--- rank {rank} ---\n{self.output(rank)}" for rank in range(len(self.logs)))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.join(PATIENCE)
        for line in self.lines:
            line.close()
        shutil.rmtree(self.logs[0].parent, ignore_errors=True)  # a test may leave an inner and an outer block


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    method: str = "forkserver",
    deadline: float = DEADLINE,
    exits: Mapping[int, int] | None = None,
) -> list[Outcome]:
    """Call ``function(*arguments)`` in ``size`` processes and wait for their ends.

    Fails when a rank is not done at the deadline, or ends with another exit code than 0 (or than ``exits`` says for
    it), and then shows what every rank wrote. A rank that ends without an outcome, killed, has an empty one.
    """
    until = time.monotonic() + deadline
    expected = [(exits or {}).get(rank, 0) for rank in range(size)]
    with start_ranks(function, size, *arguments, method=method, deadline=deadline) as ranks:
        outcomes = [Outcome()] * size
        for rank in range(size):
            with suppress(AssertionError):
                # Before the exit code: a process with a large result does not end until someone reads it.
                outcomes[rank] = ranks.outcome(rank, until - time.monotonic())
        codes = [ranks.exit_code(rank, until - time.monotonic()) for rank in range(size)]
        assert codes == expected, f"exit codes {codes} (None: hangs), expected {expected}\n{ranks.written()}"
        return [replace(outcome, output=ranks.output(rank)) for rank, outcome in enumerate(outcomes)]


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned; fails when one raised, and then shows all of them: the first is seldom the cause."""
    raised = [
        f"rank {rank} raised {outcome.error}: {outcome.text}\n{outcome.output}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error
    ]
    assert not raised, "\n".join(raised)
    return [outcome.value for outcome in outcomes]


def start_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    method: str = "forkserver",
    store: tuple[str, int] | None = None,
    deadline: float = DEADLINE,
) -> Ranks:
    """Start ``function(*arguments)`` in ``size`` processes that form a gloo group.

    Rank 0 hosts the group's store unless ``store`` says where one is. A process that still runs shortly before the
    deadline writes the stacks of its threads.
    """
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(PRELOADED)
    context: Any = multiprocessing.get_context(method)
    folder = Path(tempfile.mkdtemp())
    ranks = Ranks()
    for rank in range(size):
        ours, theirs = context.Pipe()
        log = folder / f"rank{rank}.log"
        process = context.Process(
            target=_process, args=(function, arguments, rank, size, theirs, str(log), store, deadline)
        )
        process.start()
        theirs.close()
        ranks.lines.append(ours)
        ranks.processes.append(process)
        ranks.logs.append(log)
    try:
        if store is None:
            port = ranks.hear(0, deadline)
            for rank in range(1, size):
                ranks.tell(rank, ("127.0.0.1", port))
    except BaseException:
        ranks.__exit__()
        raise
    return ranks


def _process(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    size: int,
    line: Connection,
    log: str,
    store: tuple[str, int] | None,
    deadline: float,
) -> None:
    """The life of a rank's process; whatever it writes goes to its log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    stacks = open(log, "a")  # noqa: SIM115 - must stay open as long as the process lives
    faulthandler.enable(stacks)
    faulthandler.dump_traceback_later(deadline * 0.9, file=stacks)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _join_group(rank, size, line, store)
    _lines.append(line)
    try:
        outcome = Outcome(function(*arguments))
    except Exception as error:  # noqa: BLE001 - an error is a result here
        traceback.print_exc()
        outcome = Outcome(error=type(error).__name__, text=str(error))
    with suppress(OSError):  # the test has ended before
        line.send(outcome)


def _join_group(rank: int, size: int, line: Connection, address: tuple[str, int] | None) -> None:
    import torch
    import torch.distributed as dist

    # Not by the host's name: where it resolves to an address of another interface, gloo's connections fail.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if address is None and rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        line.send(store.port)
    else:
        host, port = address or line.recv()
        store = dist.TCPStore(host, port, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.barrier()  # or a short function may end, and the store's host with it, before others are connected
