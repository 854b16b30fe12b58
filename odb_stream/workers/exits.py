"""Worker exits in words: how a process ended, what it was doing, and the way out."""

import signal

GUARD = 'if __name__ == "__main__":'


def describe_exit(process: str, exit_code: int | None, *, ready: bool, task: str | None) -> str:
    """One message for a process that ended unasked.

    ``exit_code`` is negative for a signal, as ``multiprocessing.Process.exitcode`` is. ``ready``: whether the process
    had finished starting. ``task``: what it was doing; None if it was waiting for work.
    """
    killed_by = _signal_name(-exit_code) if exit_code is not None and exit_code < 0 else None
    ended = f"{process} was killed by {killed_by}" if killed_by else f"{process} ended with exit code {exit_code}"
    if not ready and not killed_by:
        return (
            f"{ended} before it was ready. Its traceback is on standard error. Workers import the main module: a "
            f"script's own code must be under `{GUARD}`, and its imports must work in a fresh process."
        )
    doing = (task or "waiting for work") if ready else "starting"
    return f"{ended} while {doing}. {_way_out(killed_by)}"


def _way_out(killed_by: str | None) -> str:
    if killed_by is None:
        return "A stage, or a library under it, ended the process: run with workers=0 to see where."
    if killed_by in ("SIGKILL", "SIGTERM"):
        return (
            "Something outside sent it. SIGKILL usually comes from the kernel, out of memory (its log names the "
            "process): use fewer workers, or stages that take less memory."
        )
    return "That is a crash in native code: run with workers=0 under `python -X faulthandler` to find the stage."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
