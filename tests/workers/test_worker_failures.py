"""Workers that die and pipelines that cannot reach them: each is one clear error, in time, with the way out."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import worker_stages
from waiting import PATIENCE, eventually
from worker_stages import prepare

from odb_stream.errors import ConfigError, WorkerError
from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import Stage
from odb_stream.workers.exits import describe_exit
from odb_stream.workers.pool import WorkerPool


def failure_of(pool: WorkerPool) -> str:
    """The message of the pool's end, which every later call repeats."""
    with pytest.raises(WorkerError) as caught:
        pool.submit(worker_stages.records(2)).result(PATIENCE)
    with pytest.raises(WorkerError) as again:
        pool.submit(worker_stages.records(2))
    assert str(caught.value) == str(again.value)
    return str(caught.value)


def test_killed_worker_is_named_with_its_work(tmp_path: Path) -> None:
    holding = tmp_path / "pid"
    with WorkerPool(prepare(worker_stages.Hold(holding)), 2) as pool:
        futures = [pool.submit(worker_stages.records(4, start=9)) for _ in range(4)]
        eventually(holding.exists)
        os.kill(int(holding.read_text()), signal.SIGKILL)
        for future in futures:
            with pytest.raises(WorkerError, match=r"SIGKILL while preparing 4 records from a\.tar") as caught:
                future.result(PATIENCE)
    assert "key 'key9'" in str(caught.value)
    assert "out of memory" in str(caught.value)


def test_idle_worker_killed(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    with WorkerPool(prepare(), 2) as pool:
        for _ in range(2):
            pool.submit(worker_stages.records(1)).result(PATIENCE)
        (one, other) = set(multiprocessing.active_children()) - before
        os.kill(one.pid or 0, signal.SIGKILL)
        eventually(lambda: other.exitcode is not None)
        with pytest.raises(WorkerError, match="SIGKILL"):
            pool.submit(worker_stages.records(1))


@pytest.mark.parametrize(
    ("stage", "facts"),
    [
        (worker_stages.leave, ["worker 1 of 1 (pid ", "exit code 7 while preparing 2 records"]),
        (worker_stages.Signal(signal.SIGSEGV), ["killed by SIGSEGV", "native code", "faulthandler"]),
        (worker_stages.OnlyHere(), ["rebuild the pipeline", "LookupError: no vocabulary here"]),
    ],
    ids=["a stage that exits", "a native crash", "a stage that does not unpickle there"],
)
def test_worker_that_ends_by_itself_says_why(stage: Stage, facts: list[str]) -> None:
    with WorkerPool(prepare(stage), 1) as pool:
        message = failure_of(pool)
    for fact in facts:
        assert fact in message


def test_stage_that_does_not_pickle_is_named() -> None:
    second = SourceStages(worker_stages.numbers, (worker_stages.shuffle, lambda sample: sample))
    pipeline = Prepare((SourceStages(worker_stages.numbers), second), 0)
    with pytest.raises(ConfigError, match=r"stage 2 \(.*<lambda>\) cannot be sent to worker processes") as caught:
        WorkerPool(pipeline, 1)
    assert "workers=0" in str(caught.value)
    WorkerPool(pipeline, 0).close()


def test_opener_that_does_not_pickle_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the source's .*<lambda> cannot be sent"):
        WorkerPool(Prepare((SourceStages(lambda record: {}),), 0), 1)


def build_in_daemon(answers: Connection) -> None:
    try:
        WorkerPool(prepare(), 1)
    except ConfigError as error:
        answers.send(str(error))


def test_daemonic_process_is_refused() -> None:
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe()
    process = context.Process(target=build_in_daemon, args=(theirs,), daemon=True)
    process.start()
    assert answers.poll(PATIENCE)
    assert "daemonic process" in answers.recv()
    process.join(PATIENCE)
    answers.close()
    theirs.close()


@pytest.mark.parametrize(
    ("exit_code", "ready", "words"),
    [
        (1, False, "exit code 1 before it was ready"),
        (-9, False, "killed by SIGKILL while starting"),
        (-9, True, "killed by SIGKILL while waiting for work"),
        (-63, True, "killed by signal 63"),
        (None, True, "exit code None"),
    ],
)
def test_exit_in_words(exit_code: int | None, ready: bool, words: str) -> None:
    assert words in describe_exit("worker 1 of 1", exit_code, ready=ready, task=None)
