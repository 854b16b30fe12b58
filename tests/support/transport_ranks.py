"""Runs one function on every rank: as threads over an InMemoryHub, or as real processes over Gloo.

A body gets ``build``, which gives this rank's next transport, and a connection to the test. What it returns, or the
Left or PeerError that it raises, is sent back as an ``Outcome``.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from waiting import PATIENCE

from odb_stream.config import World
from odb_stream.errors import PeerError
from odb_stream.ranks.transport import InMemoryHub, Left, Local, Transport

Build = Callable[[], Transport]
Body = Callable[..., Any]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch.distributed", "odb_stream.ranks.gloo"])


class Outcome(NamedTuple):
    """How a body ended: ``kind`` is "value" or the name of what it raised."""

    kind: str
    value: Any


@dataclass
class Ranks:
    """The ranks of one test. Leaving the ``with`` block ends what still runs."""

    lines: list[Connection]
    processes: list[BaseProcess] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def tell(self, rank: int, message: Any = None) -> None:
        self.lines[rank].send(message)

    def hear(self, rank: int, within: float = PATIENCE) -> Any:
        """The next message of a rank; fails the test when none comes in time."""
        if not self.lines[rank].poll(within):
            raise AssertionError(f"rank {rank} said nothing within {within} s")
        return self.lines[rank].recv()

    def outcome(self, rank: int, within: float = PATIENCE) -> Outcome:
        """How a rank's body ended; fails the test when it has not ended in time."""
        ended = self.hear(rank, within)
        assert isinstance(ended, Outcome), ended
        return ended

    def outcomes(self, within: float = PATIENCE) -> list[Outcome]:
        return [self.outcome(rank, within) for rank in range(len(self.lines))]

    def values(self, within: float = PATIENCE) -> list[Any]:
        """What all bodies returned; fails the test if one raised."""
        outcomes = self.outcomes(within)
        assert [outcome.kind for outcome in outcomes] == ["value"] * len(outcomes), outcomes
        return [outcome.value for outcome in outcomes]

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def exit_code(self, rank: int, within: float = PATIENCE) -> int | None:
        """Wait for a process to end; None when it did not in time."""
        self.processes[rank].join(within)
        return self.processes[rank].exitcode

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.join(PATIENCE)
        for line in self.lines:
            line.close()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def ranks_in_memory(size: int, body: Body, *args: Any, builds: int = 1) -> Ranks:
    """Ranks as threads."""
    hubs = [InMemoryHub(size) for _ in range(builds)]
    lines, threads = [], []
    for rank in range(size):
        ours, theirs = Pipe()
        transports = iter([hub.transport(rank) for hub in hubs] if size > 1 else [Local() for _ in hubs])
        thread = threading.Thread(target=_report, args=(theirs, body, transports.__next__, theirs, *args))
        thread.start()
        lines.append(ours)
        threads.append(thread)
    return Ranks(lines, threads=threads)


def ranks_over_gloo(
    size: int,
    body: Body,
    *args: Any,
    store: tuple[str, int] | None = None,
    context: Any = processes,
    settings: Mapping[str, Any] | None = None,
) -> Ranks:
    """Ranks as processes. Rank 0 hosts the store, unless ``store`` says where one is; ``settings`` are Gloo's."""
    lines, started = [], []
    for rank in range(size):
        ours, theirs = Pipe()
        process = context.Process(
            target=run_process, args=(rank, size, theirs, store, {"timeout": 600.0, **(settings or {})}, body, args)
        )
        process.start()
        theirs.close()
        lines.append(ours)
        started.append(process)
    if store is None:
        port = lines[0].recv()
        for line in lines[1:]:
            line.send(("127.0.0.1", port))
    return Ranks(lines, processes=started)


def run_process(
    rank: int,
    size: int,
    line: Connection,
    address: tuple[str, int] | None,
    settings: Mapping[str, Any],
    body: Body,
    args: tuple[Any, ...],
) -> None:
    """What one rank's process does."""
    import torch.distributed as dist

    from odb_stream.ranks.gloo import Gloo

    if address is None and rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        line.send(store.port)
    else:
        host, port = address or line.recv()
        store = dist.TCPStore(host, port, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.barrier()  # a short body may be through, and the store's host gone, before others have come so far
    _report(line, body, lambda: Gloo(World(rank, size), **settings), line, *args)


def _report(line: Connection, body: Body, *args: Any) -> None:
    try:
        outcome = Outcome("value", body(*args))
    except (Left, PeerError) as error:
        outcome = Outcome(type(error).__name__, str(error))
    with suppress(BrokenPipeError, OSError):  # the test has ended before
        line.send(outcome)


def host_store(line: Connection) -> None:
    """A process that hosts a store and does nothing else, as a launcher does."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line.send(store.port)
    threading.Event().wait()
