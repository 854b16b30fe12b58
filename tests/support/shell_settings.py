"""Takes the shell's wishes for outputs out of the environment: what a test reads has the same form everywhere."""

import os

FORGOTTEN = (
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
    "GITHUB_ACTIONS",  # typer takes a runner of GitHub for a terminal with colours
    "PYTHONUNBUFFERED",  # unbuffered, ranks that share a pipe tear each other's lines
)  # fmt: skip


def forget_shell_settings() -> None:
    """For this process and those that it starts."""
    for name in FORGOTTEN:
        os.environ.pop(name, None)
