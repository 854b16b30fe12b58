"""The worker pool: equal results for any number of workers, nothing left after close, one clear error per death.

Then whole programs with a pool: killed, interrupted, without a guard, from standard input, ended unclosed.
"""

import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import worker_stages
from processes import HEAD, finished, lines, running, script, session_members, signal_mask
from waiting import PATIENCE, background_threads, descriptors, eventually, shared_memory, stat
from worker_stages import plain, prepare

from odb_stream.errors import ConfigError, StageError, WorkerError
from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import PreparedSample, Record, Stage
from odb_stream.workers.pool import WorkerPool, describe_exit


def run(workers: int, *stages: Stage, size: int = 7, count: int = 40) -> list[object]:
    everything = worker_stages.records(count)
    chunks: list[list[Record]] = [everything[i : i + size] for i in range(0, count, size)]
    with WorkerPool(prepare(*stages), workers) as pool:
        futures = [pool.submit(records) for records in chunks]
        prepared = [future.result(PATIENCE) for future in futures]
        assert prepared[0] is pool.wait(futures[0])
    return [plain(result) for chunk, records in zip(prepared, chunks, strict=True) for result in chunk.results(records)]


@pytest.mark.parametrize("workers", [1, 2])
def test_same_outcomes_as_inline(workers: int) -> None:
    stages = (worker_stages.shuffle, worker_stages.supervise_half, worker_stages.drop_fifth, worker_stages.fail_at_30)
    inline = run(0, *stages)
    # 30 is the third of its chunk of seven: the last four of that chunk stay unprepared, the next chunk does not.
    assert len(inline) == 40 - 4
    assert any(isinstance(result, tuple) and result[0] is StageError for result in inline)
    assert run(workers, *stages) == inline


def test_constructor_does_not_wait_for_the_workers() -> None:
    """Not even with a pipeline larger than any pipe buffer. The pool then works, and can be closed while it starts."""
    heavy = functools.partial(worker_stages.carry, bytes(4_000_000))
    WorkerPool(prepare(heavy), 2).close()
    assert len(run(2, heavy)) == 40


def test_light_stages_load_no_heavy_module_in_the_worker() -> None:
    with WorkerPool(prepare(worker_stages.heavy_modules), 1) as pool:
        records = worker_stages.records(1)
        (sample,) = pool.submit(records).result(PATIENCE).results(records)
    assert isinstance(sample, PreparedSample)
    assert sample.input_ids.tolist() == [1, 0]


def test_failure_in_a_worker_brings_its_traceback() -> None:
    with WorkerPool(prepare(worker_stages.fail_at_30), 1) as pool:
        failure = pool.submit(worker_stages.records(3, start=30)).result(PATIENCE).failure
    assert type(failure) is StageError
    assert "fail_at_30 raised ValueError: thirty is too much" in str(failure)
    assert "a.tar, key 'key30' (sample 30, byte offset 15360)" in str(failure)
    assert "in fail_at_30" in failure.__notes__[0]


def nothing_runs() -> bool:
    """Whether no worker process and no listening thread of any pool is left."""
    workers = [child for child in multiprocessing.active_children() if child.name.startswith("worker ")]
    return not workers and not background_threads("odb_stream-workers")


@pytest.fixture
def surroundings() -> Iterator[None]:
    """Fails unless children, threads, descriptors and shared memory become again what they were."""
    run(1, count=1)  # what is started once a process (the resource tracker) is not what is tested
    eventually(nothing_runs)
    opened, shared = descriptors(), shared_memory()
    yield
    eventually(nothing_runs)
    eventually(lambda: descriptors() <= opened)
    eventually(lambda: shared_memory() <= shared)


@pytest.mark.usefixtures("surroundings")
def test_rounds_of_open_and_close_leave_nothing() -> None:
    for round_number in range(10):
        with WorkerPool(prepare(), 2) as pool:
            futures = [pool.submit(worker_stages.records(3)) for _ in range(3)]
            if round_number % 2:  # every other round is closed in the middle of the start
                assert [len(future.result(PATIENCE).lengths) for future in futures] == [3, 3, 3]


def test_inline_pool_closes_too() -> None:
    with WorkerPool(prepare(), 0) as pool:
        pool.submit(worker_stages.records(2))
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(worker_stages.records(2))


@pytest.mark.usefixtures("surroundings")
def test_close_fails_what_is_awaited_and_may_be_repeated(tmp_path: Path) -> None:
    holding = tmp_path / "pid"
    pool = WorkerPool(prepare(functools.partial(worker_stages.hold, holding)), 1)
    futures = [pool.submit(worker_stages.records(1)) for _ in range(3)]
    eventually(holding.exists)
    pool.close()
    pool.close()
    for future in futures:
        assert future.done()
        with pytest.raises(WorkerError, match="closed"):
            pool.wait(future)
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(worker_stages.records(1))


@pytest.mark.usefixtures("surroundings")
def test_forgotten_pool_is_collected(tmp_path: Path) -> None:
    holding = tmp_path / "pid"
    pool = WorkerPool(prepare(functools.partial(worker_stages.hold, holding)), 1)
    future: Future[object] = pool.submit(worker_stages.records(1))
    eventually(holding.exists)
    del pool
    gc.collect()
    assert isinstance(future.exception(PATIENCE), WorkerError)


def test_forked_copy_does_not_end_the_workers() -> None:
    with WorkerPool(prepare(), 1) as pool:
        pool.submit(worker_stages.records(1)).result(PATIENCE)
        child = os.fork()
        if child == 0:
            pool.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(pool.submit(worker_stages.records(2)).result(PATIENCE).lengths) == 2


@pytest.mark.parametrize("workers", [-1, 1.5, True])
def test_workers_is_a_count(workers: int) -> None:
    with pytest.raises(ConfigError, match="workers"):
        WorkerPool(prepare(), workers)


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
    with WorkerPool(prepare(functools.partial(worker_stages.hold, holding)), 2) as pool:
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
        (
            functools.partial(worker_stages.signal_itself, signal.SIGSEGV),
            ["killed by SIGSEGV", "native code", "faulthandler"],
        ),
        (worker_stages.OnlyHere(), ["rebuild the pipeline", "LookupError: no vocabulary here"]),
    ],
    ids=["a stage that exits", "a native crash", "a stage that does not unpickle there"],
)
def test_worker_that_ends_by_itself_says_why(stage: Stage, facts: list[str]) -> None:
    with WorkerPool(prepare(stage), 1) as pool:
        message = failure_of(pool)
    for fact in facts:
        assert fact in message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            SourceStages(worker_stages.numbers, (worker_stages.shuffle, lambda sample: sample)),
            r"stage 2 \(.*<lambda>\)",
        ),
        (SourceStages(lambda record: {}), "the source's .*<lambda>"),
    ],
)
def test_what_does_not_pickle_is_named(source: SourceStages, words: str) -> None:
    pipeline = Prepare((SourceStages(worker_stages.numbers), source), 0)
    with pytest.raises(ConfigError, match=f"{words} cannot be sent to worker processes.*workers=0"):
        WorkerPool(pipeline, 1)
    WorkerPool(pipeline, 0).close()


def build_in_daemon(answers: Connection) -> None:
    try:
        WorkerPool(prepare(), 1)
    except ConfigError as error:
        answers.send(str(error))


def test_daemonic_process_is_refused() -> None:
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe()
    with answers, theirs:
        process = context.Process(target=build_in_daemon, args=(theirs,), daemon=True)
        process.start()
        assert answers.poll(PATIENCE)
        assert "daemonic process" in answers.recv()
        process.join(PATIENCE)


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


SIGINT_BIT = 1 << (signal.SIGINT - 1)

HOLDING = """
if __name__ == "__main__":
    with pool_of(2, hold) as pool:
        futures = [pool.submit(records(1)) for _ in range(2)]
        pool.wait(futures[0])
"""


def test_workers_go_with_a_killed_parent(tmp_path: Path) -> None:
    before = shared_memory()
    with script(HOLDING, tmp_path) as process:
        workers = [int(line) for line in lines(process, 2)]
        assert all(map(running, workers))
        process.kill()
        eventually(lambda: not any(map(running, workers)))
        eventually(lambda: session_members(process.pid) == [])
        assert finished(process)[2] == ""
    eventually(lambda: shared_memory() <= before)


STARTING = """
if __name__ == "__main__":
    with pool_of(2) as pool:
        print("constructed", flush=True)
        threading.Event().wait()
"""


@pytest.mark.parametrize(("source", "count"), [(HOLDING, 2), (STARTING, 1)], ids=["busy workers", "starting workers"])
def test_ctrl_c_ends_at_once_with_one_traceback(source: str, count: int, tmp_path: Path) -> None:
    with script(source, tmp_path) as process:
        assert all(lines(process, count))
        os.killpg(process.pid, signal.SIGINT)
        code, _, error = finished(process)
        eventually(lambda: session_members(process.pid) == [])
    assert code == -signal.SIGINT
    assert error.count("Traceback") == 1
    assert error.rstrip().endswith("KeyboardInterrupt")


def test_workers_never_take_ctrl_c(tmp_path: Path) -> None:
    """From the first instruction on: blocked while they start, then ignored, and not blocked for what they start."""
    source = """
import multiprocessing
if __name__ == "__main__":
    with pool_of(2, hold) as pool:
        for child in multiprocessing.active_children():
            with open(f"/proc/{child.pid}/status") as status:
                masks = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Sig")
                         and "Q" not in line}
            print(bool((masks["SigIgn:"] | masks["SigBlk:"]) & 2), flush=True)
        futures = [pool.submit(records(1)) for _ in range(2)]
        pool.wait(futures[0])
"""
    with script(source, tmp_path) as process:
        assert lines(process, 2) == ["True", "True"]
        for worker in [int(line) for line in lines(process, 2)]:
            assert signal_mask(worker, "SigIgn") & SIGINT_BIT
            assert not signal_mask(worker, "SigBlk") & SIGINT_BIT


def test_worker_killed_in_the_middle_of_a_message(tmp_path: Path) -> None:
    """The parent is stopped, so the worker's answer fills the stream and blocks halfway; then the worker dies."""
    source = """
def big(sample):
    print(os.getpid(), flush=True)
    with open(sys.argv[1]):  # a FIFO: opens once the test opens it too
        pass
    return {"input_ids": [1] * 4_000_000}

if __name__ == "__main__":
    with pool_of(1, big) as pool:
        try:
            pool.wait(pool.submit(records(1)))
        except OdbStreamError as error:
            print(f"{type(error).__name__}: {error}")
"""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with script(source, tmp_path, str(gate)) as process:
        worker = int(*lines(process, 1))
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: (stat(process.pid) or "?")[0] == "T")
        gate.write_text("")
        asleep = 0

        def stuck() -> bool:
            nonlocal asleep
            asleep = asleep + 1 if (stat(worker) or "?")[0] == "S" else 0
            return asleep >= 10

        eventually(stuck)
        os.kill(worker, signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
        code, output, _ = finished(process)
    assert code == 0
    assert output.startswith("WorkerError: worker 1 of 1")
    assert "SIGKILL" in output


@pytest.mark.parametrize("order", ["", "import weakref\nweakref.finalize(len, str)\n"])
def test_program_that_never_closes_its_pool_ends(order: str, tmp_path: Path) -> None:
    """Also when multiprocessing's own exit handler, which waits for processes, runs before the pool's."""
    source = """
if __name__ == "__main__":
    pool = pool_of(2, hold)
    pool.submit(records(1))
    sys.modules["keep"] = pool
"""
    with script(source, tmp_path, head=order + HEAD) as process:
        code, _, error = finished(process)
        eventually(lambda: session_members(process.pid) == [])
    assert (code, error) == (0, "")


@pytest.mark.parametrize("ballast", [0, 4_000_000])
def test_script_without_guard(ballast: int, tmp_path: Path) -> None:
    """Also with a pipeline larger than any pipe, which a process that dies while it starts never reads."""
    source = f"""
import functools
def weigh(ballast, sample):
    return sample

with pool_of(1, functools.partial(weigh, bytes({ballast}))) as pool:
    pool.wait(pool.submit(records(1)))
"""
    with script(source, tmp_path) as process:
        code, _, error = finished(process)
    assert code == 1
    assert "WorkerError: worker 1 of 1" in error
    assert "ended with exit code 1 before it was ready" in error
    # The worker's own error says it too.
    assert "ConfigError: worker processes were asked for by a worker process" in error
    assert error.count('if __name__ == "__main__":') >= 2


def run_python(arguments: list[str], source: str | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, input=source, capture_output=True, text=True, timeout=PATIENCE, check=False, **options
    )


USE = """
with pool_of(1) as pool:
    print(len(pool.wait(pool.submit(records(3))).lengths))
"""


@pytest.mark.parametrize(
    ("arguments", "source", "what"),
    [(["-"], HEAD + USE, "'<stdin>'"), (["-c", HEAD + USE], None, "opener is defined in")],
    ids=["script from standard input", "session without file"],
)
def test_main_module_that_workers_cannot_import(arguments: list[str], source: str | None, what: str) -> None:
    result = run_python(arguments, source)
    assert result.returncode == 1
    assert f"ConfigError: workers > 0, but the main module is not importable: {what}" in result.stderr
    assert result.stderr.count("Traceback") == 1


def test_session_without_file_may_use_imported_stages() -> None:
    importing = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n" + HEAD
    result = run_python(["-c", importing + "from worker_stages import numbers as opener\n" + USE])
    assert (result.returncode, result.stdout) == (0, "3\n")


@pytest.mark.parametrize("name", ["whole.script", "whole.__main__"])
def test_module_run_by_name(name: str, tmp_path: Path) -> None:
    """``python -m`` works, but a package's ``__main__`` is not imported by workers: the error names what is missing."""
    package = tmp_path / "whole"
    package.mkdir()
    (package / "__init__.py").write_text("")
    body = HEAD + 'if __name__ == "__main__":\n' + "".join(f"    {line}\n" for line in USE.splitlines())
    (package / f"{name.removeprefix('whole.')}.py").write_text(body)
    result = run_python(["-m", name.removesuffix(".__main__")], cwd=tmp_path)
    if name == "whole.script":
        assert (result.returncode, result.stdout) == (0, "3\n")
    else:
        assert "could not rebuild the pipeline" in result.stderr
        assert "opener" in result.stderr
