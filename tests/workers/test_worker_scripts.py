"""Whole programs with a worker pool: killed, interrupted, without a guard, from standard input, ended unclosed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import HEAD, finished, lines, running, script, session_members, signal_mask
from waiting import PATIENCE, eventually, shared_memory, stat

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
