"""The program ``odb-stream``: its commands, and what becomes of an error: one clear line and an exit code."""

import errno
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from odb_stream.cli import check, index, inspect, run, simulate, state, write
from odb_stream.errors import ConfigError, OdbStreamError

FAILED = 1
"""Exit code of a run that failed, and of ``check`` when it found a problem."""
USAGE = 2
"""Exit code of wrong arguments, settings or recipes: what can be told before data flows."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Commands(TyperGroup):
    """The commands as a group; what they raise ends here."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OdbStreamError as error:
            code = USAGE if isinstance(error, ConfigError) else FAILED
            raise _explained(error, str(error), debug=ctx.params["debug"], code=code) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise _explained(error, str(error), debug=ctx.params["debug"], code=FAILED) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


def _explained(error: Exception, message: str, *, debug: bool, code: int) -> typer.Exit:
    """Say on standard error what went wrong, and give the exit to raise."""
    if debug:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {message}", err=True)
    return typer.Exit(code)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 fine; 1 a run that failed, or problems found by check; 2 wrong arguments, settings or recipe; "
        "130 ended by Ctrl-C."
    ),
)
app.command(epilog=f"Example: {write.EXAMPLE}")(write.write)
app.command(epilog=f"Example: {index.EXAMPLE}")(index.index)
app.command(epilog=f"Example: {check.EXAMPLE}")(check.check)
app.command(epilog=f"Example: {run.EXAMPLE}")(run.run)
app.command(epilog=f"Example: {inspect.EXAMPLE}")(inspect.inspect)
app.command(epilog=f"Example: {simulate.EXAMPLE}")(simulate.simulate)
app.command(epilog=f"Example: {state.EXAMPLE}")(state.state)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"odb-stream {version('odb-stream')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, too.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sample shards in, token-budget batches out.

    Results go to standard output (as JSON with --json), progress and errors to standard error.
    """


def main() -> None:
    """Run the command that the arguments name."""
    app()


if __name__ == "__main__":
    main()
