"""Runs one function on several ranks: real processes over gloo on loopback, their results and errors brought back."""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

DEADLINE = 180.0
"""Seconds after which whatever still runs is killed and the test fails; only what hangs takes nearly as long."""

PRELOADED = ["torch.distributed", "odb_stream.loader.loader", "pytest"]
"""What the fork server imports once, so that a rank starts in milliseconds."""


@dataclass(frozen=True)
class Outcome:
    """What became of a rank: what its function returned, or the type and text of what it raised; and its exit code."""

    value: Any = None
    error: str = ""
    text: str = ""
    exit_code: int | None = None
    output: str = ""


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    method: str = "forkserver",
    deadline: float = DEADLINE,
    exits: Mapping[int, int] | None = None,
) -> list[Outcome]:
    """Call ``function(*arguments)``, a function at the top of a module, in ``size`` processes in one gloo group.

    What the function raises comes back as an outcome. Fails when a rank is not done at the deadline, or ends with
    another exit code than 0 (or than ``exits`` says for it), and then shows what every rank wrote.
    """
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(PRELOADED)
    context: Any = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"rank{rank}.log") for rank in range(size)]
        pipes = [context.Pipe() for _ in range(size)]
        ranks = [
            context.Process(
                target=_rank_main,
                args=(function, arguments, rank, size, theirs, str(logs[rank]), deadline),
                name=f"rank {rank}",
            )
            for rank, (_, theirs) in enumerate(pipes)
        ]
        try:
            for rank, (process, (_, theirs)) in enumerate(zip(ranks, pipes, strict=True)):
                process.start()
                if method != "fork" or rank == size - 1:
                    theirs.close()
            results = _listen(ranks, [ours for ours, _ in pipes], time.monotonic() + deadline)
        finally:
            hanging = [process.name for process in ranks if process.pid is not None and process.exitcode is None]
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
        outputs = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
    expected = [(exits or {}).get(rank, 0) for rank in range(size)]
    codes = [process.exitcode for process in ranks]
    if hanging or codes != expected:
        everything = "\n".join(f"--- rank {rank} ---\n{text}" for rank, text in enumerate(outputs))
        raise AssertionError(f"hanging: {hanging or 'none'}; exit codes {codes}, expected {expected}\n{everything}")
    return [
        Outcome(*(results.get(rank) or (None, "", "")), exit_code=codes[rank], output=outputs[rank])
        for rank in range(size)
    ]


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned; fails when one raised, and then shows all of them: the first is seldom the cause."""
    raised = [
        f"rank {rank} raised {outcome.error}: {outcome.text}\n{outcome.output}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error
    ]
    assert not raised, "\n".join(raised)
    return [outcome.value for outcome in outcomes]


def _listen(ranks: list[Any], pipes: list[Connection], until: float) -> dict[int, tuple[Any, str, str]]:
    """Pass the port of rank 0 on to the others, take in results, and return when all have ended or time is up."""
    results: dict[int, tuple[Any, str, str]] = {}
    open_pipes = dict(enumerate(pipes))
    running = dict(enumerate(ranks))
    while running and (left := until - time.monotonic()) > 0:
        wait([*open_pipes.values(), *(process.sentinel for process in running.values())], timeout=left)
        for rank, pipe in list(open_pipes.items()):
            try:
                while pipe.poll():
                    kind, value = pipe.recv()
                    if kind == "port":
                        for other in pipes[1:]:
                            other.send(value)
                    else:
                        results[rank] = value
            except (EOFError, OSError):
                del open_pipes[rank]
        for rank, process in list(running.items()):
            if process.exitcode is not None:
                process.join()
                del running[rank]
    for rank, pipe in open_pipes.items():  # what a rank said just before it ended
        try:
            while pipe.poll():
                results[rank] = pipe.recv()[1]
        except (EOFError, OSError):
            continue
    return results


def _rank_main(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    size: int,
    talk: Connection,
    log: str,
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
    join_group(rank, size, talk)
    try:
        result = (function(*arguments), "", "")
    except Exception as error:  # noqa: BLE001 - an error is a result here
        traceback.print_exc()
        result = (None, type(error).__name__, str(error))
    talk.send(("result", result))


def join_group(rank: int, size: int, talk: Connection) -> None:
    """Start torch.distributed on a port that rank 0 was given by the system."""
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        talk.send(("port", store.port))
    else:
        store = dist.TCPStore("127.0.0.1", talk.recv(), size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.barrier()  # a short function may be through, and the store's host gone, before others have come so far
